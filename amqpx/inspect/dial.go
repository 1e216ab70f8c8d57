package inspect

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
)

// Dial opens one connection as amqpx.Open does, to the first of Config.URL and URLs
// that answers, in a random order, and declares nothing. The caller closes it. If no node
// answers, the error has an *amqpx.DialError for each.
func Dial(ctx context.Context, cfg amqpx.Config) (*amqp.Connection, error) {
	return inner.Dial(ctx, cfg)
}
