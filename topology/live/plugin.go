package live

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// pluginName is as rabbitmq-plugins knows it.
const pluginName = "rabbitmq_delayed_message_exchange"

// ErrNoPlugin is wrapped by every *NoPluginError.
var ErrNoPlugin = errors.New("the delayed message plugin is not available")

// NoPluginError reports a broker that does not know the x-delayed-message exchange type.
type NoPluginError struct {
	Product string // what the broker calls itself, e.g. "RabbitMQ"
	Version string // its version, e.g. "4.0.5"
	Cause   error  // what it answered
}

func (e *NoPluginError) Error() string {
	advice := "or enable it (rabbitmq-plugins enable " + pluginName + ") where it is installed"
	if observed.ParseVersion(e.Version).AtLeast(4, 3, 0) {
		advice = "this version cannot run it, as it needs Mnesia, which RabbitMQ 4.3 removed"
	}
	return fmt.Sprintf("%s does not have the plugin %s; use the strategy bucket (any delay) or ttl (declared delays), which need none; %s: %v",
		e.broker(), pluginName, advice, e.Cause)
}

// broker is the broker's name and version, as far as it gave them.
func (e *NoPluginError) broker() string {
	if name := strings.TrimSpace(e.Product + " " + e.Version); name != "" {
		return name
	}
	return "the broker"
}

// noPlugin is the error about the broker of a connection.
func noPlugin(conn *amqp.Connection, cause error) *NoPluginError {
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	return &NoPluginError{Product: product, Version: version, Cause: cause}
}

// Unwrap makes errors.Is(err, ErrNoPlugin) true.
func (e *NoPluginError) Unwrap() []error { return []error{ErrNoPlugin, e.Cause} }

// closeTimeout bounds the goodbye to the broker after a probe.
const closeTimeout = 2 * time.Second

// ProbePlugin finds out whether a broker has the plugin, by declaring and deleting a
// delayed exchange "<prefix>.plugin.probe" of the default prefix. It does so on
// a connection of its own, which dial makes and ProbePlugin closes, because a broker
// before RabbitMQ 4.0 closes the whole connection over an unknown exchange type.
//
// It returns nil when the plugin is there, a *NoPluginError when it is not, and another error if the probe
// failed: dial failed, the connection broke, or ctx ended.
func ProbePlugin(ctx context.Context, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("probing for the plugin %s: %w", pluginName, err)
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		// A deadline in the past: calls that wait for the broker return now.
		_ = conn.CloseDeadline(time.Now())
	})
	err = probe(conn)
	if stop() {
		_ = conn.CloseDeadline(time.Now().Add(closeTimeout)) // an answer is already there
	} else {
		<-done
	}
	if err == nil || errors.Is(err, ErrNoPlugin) {
		return err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("probing for the plugin %s: %w", pluginName, err)
}

func probe(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	// One fixed name: should the connection break before the deletion, the next
	// probe takes the same exchange and deletes it.
	name := topology.DefaultPrefix + ".plugin.probe"
	err = ch.ExchangeDeclare(name, argument.DelayedExchange, false, true, false, false, amqp.Table{argument.DelayedType: "topic"})
	if err == nil {
		return ch.ExchangeDelete(name, false, false)
	}
	e, refused := errors.AsType[*amqp.Error](err)
	switch {
	case !refused:
		return err
	// Brokers before 4.0 answer 503 to an unknown type and close the connection, later ones 406 and
	// close the channel.
	case (e.Code == amqp.CommandInvalid || e.Code == amqp.PreconditionFailed) && strings.Contains(e.Reason, "exchange type"):
		return noPlugin(conn, err)
	case e.Code == amqp.AccessRefused:
		return nil // brokers look at the type before the permission
	}
	return err
}
