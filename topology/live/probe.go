package live

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

var (
	// ErrNoPlugin means that the broker does not have the delayed message plugin.
	ErrNoPlugin = live.ErrNoPlugin
	// ErrInstantsIgnored means that the broker ignores the delivery time in a message's header and delivers the message
	// immediately. dlx.Native needs RabbitMQ 4.4 or later, whose quorum queues delay messages until that time.
	ErrInstantsIgnored = live.ErrInstantsIgnored
)

// ProbePlugin checks whether a broker has the delayed message plugin. It declares and deletes an exchange on its own
// connection, which it opens with dial and closes itself, because a broker before RabbitMQ 4.0 closes the whole
// connection when the exchange type is unknown. It returns nil if the broker has the plugin, an error that wraps
// ErrNoPlugin if not, and another error if the probe failed.
func ProbePlugin(ctx context.Context, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	return live.ProbePlugin(ctx, dial)
}

// ProbeInstants checks whether new quorum queues on a broker delay messages until a given time, as dlx.Native requires.
// It declares temporary queues whose names begin with prefix, on its own connection, which it opens with dial and
// closes itself. It returns nil if the queues delay messages, an error that wraps ErrInstantsIgnored if they do not,
// and another error if the probe failed.
func ProbeInstants(ctx context.Context, prefix string, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	return live.ProbeInstants(ctx, prefix, dial)
}
