package channels

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// These strings tell the user what to do about limits on connections and channels.
const (
	connectionAdvice = "a client uses up to three connections, and one more for each queue that has made the broker close a connection: " +
		"raise max-connections (rabbitmqctl set_vhost_limits or set_user_limits), or close other programs' connections"
	channelAdvice = "a client uses about a dozen channels, and one more for each consumer: " +
		"raise max-channels (rabbitmqctl set_user_limits), or stop other programs of this user"
	channelMaxAdvice = "a connection uses about a dozen channels, and the consuming one a channel for each consumer: " +
		"raise channel_max on the broker, or remove it from the URL"
)

// LimitAdvice returns what to do if the broker has refused a connection or a channel because of a limit, and an empty
// string for any other error. The limit is independent of the operation that failed, so such an error says nothing
// about the queue of that operation. The limit no longer applies once other clients have disconnected.
//
// LimitAdvice matches the texts of RabbitMQ 3.10 to 4.3. Exceeding a connection limit causes an error with code 530 on
// connection.open. Exceeding a channel limit causes one on channel.open, which closes the connection.
func LimitAdvice(err error) string {
	if errors.Is(err, amqp.ErrChannelMax) {
		return channelMaxAdvice
	}
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok || e.Code != amqp.NotAllowed {
		return ""
	}
	switch {
	case strings.Contains(e.Reason, "connection limit"):
		return connectionAdvice
	case strings.Contains(e.Reason, "number of channels opened"):
		return channelAdvice
	}
	return ""
}

// Advised returns err together with LimitAdvice, if there is any.
func Advised(err error) error {
	advice := LimitAdvice(err)
	if advice == "" || strings.Contains(err.Error(), advice) {
		return err
	}
	return fmt.Errorf("%w; %s", err, advice)
}

// Open opens a channel on conn. Its error includes the LimitAdvice, if there is any.
func Open(conn Conn) (*amqp.Channel, error) {
	ch, err := conn.Channel()
	return ch, Advised(err)
}

// Limited reports whether the broker has refused a connection or a channel because of a limit.
func Limited(err error) bool { return LimitAdvice(err) != "" }
