package live

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// pluginName is the plugin's name in rabbitmq-plugins.
const pluginName = "rabbitmq_delayed_message_exchange"

// ErrNoPlugin is wrapped by every *NoPluginError.
var ErrNoPlugin = errors.New("the delayed message plugin is not available")

// NoPluginError reports a broker that does not support the x-delayed-message exchange type.
type NoPluginError struct {
	Product string // the product name that the broker reports, e.g. "RabbitMQ"
	Version string // the broker's version, e.g. "4.0.5"
	Cause   error  // the broker's answer
}

func (e *NoPluginError) Error() string {
	advice := "or enable it (rabbitmq-plugins enable " + pluginName + ") where it is installed"
	if plan.ParseVersion(e.Version).AtLeast(4, 3, 0) {
		advice = "this version cannot run the plugin, which needs Mnesia; RabbitMQ 4.3 removed Mnesia"
	}
	return fmt.Sprintf("%s does not have the plugin %s; use the strategy bucket (any delay) or ttl (declared delays), which need no plugin; %s: %v",
		e.broker(), pluginName, advice, e.Cause)
}

// broker returns the broker's name and version if the broker reported them.
func (e *NoPluginError) broker() string {
	if name := strings.TrimSpace(e.Product + " " + e.Version); name != "" {
		return name
	}
	return "the broker"
}

// noPlugin returns the error for the broker of a connection.
func noPlugin(conn *amqp.Connection, cause error) *NoPluginError {
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	return &NoPluginError{Product: product, Version: version, Cause: cause}
}

// Unwrap makes errors.Is(err, ErrNoPlugin) true.
func (e *NoPluginError) Unwrap() []error { return []error{ErrNoPlugin, e.Cause} }

// closeTimeout bounds the closing handshake after a probe.
const closeTimeout = 2 * time.Second

// ProbePlugin checks whether a broker has the plugin. It declares and deletes a delayed exchange named
// "<prefix>.plugin.probe", with the default prefix. It uses its own connection, which it opens with dial and closes
// itself, because a broker before RabbitMQ 4.0 closes the whole connection when the exchange type is unknown.
//
// It returns nil if the broker has the plugin, a *NoPluginError if not, and another error if the probe failed because
// dial failed, the connection broke or ctx ended.
func ProbePlugin(ctx context.Context, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("probing for the plugin %s: %w", pluginName, err)
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		// With a deadline in the past, calls that wait for the broker return immediately.
		_ = conn.CloseDeadline(time.Now())
	})
	err = probe(conn)
	if stop() {
		_ = conn.CloseDeadline(time.Now().Add(closeTimeout)) // the answer has already arrived
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
	// The name is fixed. If the connection breaks before the deletion, the next probe declares the same exchange and
	// deletes it.
	name := topology.DefaultPrefix + ".plugin.probe"
	err = ch.ExchangeDeclare(name, argument.DelayedExchange, false, true, false, false, amqp.Table{argument.DelayedType: "topic"})
	if err == nil {
		return ch.ExchangeDelete(name, false, false)
	}
	e, refused := errors.AsType[*amqp.Error](err)
	switch {
	case !refused:
		return err
	// Brokers before 4.0 answer 503 for an unknown type and close the connection. Later ones answer 406 and close the
	// channel.
	case (e.Code == amqp.CommandInvalid || e.Code == amqp.PreconditionFailed) && strings.Contains(e.Reason, "exchange type"):
		return noPlugin(conn, err)
	case e.Code == amqp.AccessRefused:
		return nil // the broker checks the type before the permission
	}
	return err
}
