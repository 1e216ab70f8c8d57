package channels

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The reasons are copied from RabbitMQ 3.10.8, 4.0.5 and 4.3.6.
func TestLimitAdvice(t *testing.T) {
	refused := func(reason string) error { return &amqp.Error{Code: amqp.NotAllowed, Reason: reason, Server: true} }
	for _, c := range []struct {
		err  error
		want string // part of the advice
	}{
		{refused("NOT_ALLOWED - access to vhost 'lim' refused for user 'guest': connection limit (1) is reached"), "up to three connections"},
		{refused("NOT_ALLOWED - connection refused for user 'u': user connection limit (1) is reached"), "up to three connections"},
		{refused("NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed user limit of 2"), "max-channels"},
		{amqp.ErrChannelMax, "channel_max"},
		{refused("NOT_ALLOWED - vhost lim not found"), ""},
		{errors.New("connection limit"), ""},
		{nil, ""},
	} {
		got := LimitAdvice(c.err)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("LimitAdvice(%v) = %q, want it to contain %q (empty if that is empty)", c.err, got, c.want)
		}
		if Limited(c.err) != (c.want != "") {
			t.Errorf("Limited(%v) = %t, want %t", c.err, Limited(c.err), c.want != "")
		}
	}
	once := Advised(fmt.Errorf("open: %w", amqp.ErrChannelMax))
	if again := Advised(once); again.Error() != once.Error() {
		t.Errorf("Advised called twice: got %q, want the advice only once: %q", again, once)
	}
}
