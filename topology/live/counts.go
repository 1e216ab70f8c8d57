package live

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Count is what a queue has now, by the broker's own answer. Messages that a consumer
// holds are not ready.
type Count struct {
	Ready, Consumers int64
	Missing          bool // there is no such queue
}

// Counts counts what is ready in queues, by passive declarations on a few channels. It
// leaves out queues that the user may not see, or that belong to another connection
// alone. Its error is that of the connection or the context.
func Counts(ctx context.Context, conn Conn, queues []string) (map[string]Count, error) {
	found := make([]*Count, len(queues))
	errs := sideBySide(conn, len(queues), func(s *session, i int) error {
		q, err := countQueue(ctx, s, queues[i])
		if refusal, ok := errors.AsType[*amqp.Error](err); ok && refusal.Server {
			return nil
		}
		switch {
		case err != nil:
		case q == nil:
			found[i] = &Count{Missing: true}
		default:
			found[i] = &Count{Ready: q.Messages, Consumers: q.Consumers}
		}
		return err
	})
	out := map[string]Count{}
	for i, c := range found {
		if c != nil {
			out[queues[i]] = *c
		}
	}
	return out, errors.Join(errs...)
}
