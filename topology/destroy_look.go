package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// plan looks at the broker and decides. What only the management API counts may be
// over since, so that is looked at again before it counts.
func (d *destroyer) plan(ctx context.Context) error {
	for deadline := time.Now().Add(statsAge); ; {
		removal, stale, err := d.look(ctx)
		if err != nil {
			return err
		}
		d.removal = removal
		if !stale || !errors.Is(removal.Refusal(), ErrNotEmpty) || time.Now().After(deadline) {
			return nil
		}
		if err := sleep(ctx, countEvery); err != nil {
			return err
		}
	}
}

// look is what would be deleted now. AMQP knows ready messages and consumers as
// they are, the management API all messages as they were some seconds ago; stale
// tells that only the latter saw some.
func (d *destroyer) look(ctx context.Context) (r Removal, stale bool, err error) {
	insp := d.opts.Inspector
	if insp == nil {
		insp = NewAMQPInspector(d.conn)
	}
	live, err := insp.Inspect(ctx, d.t)
	if err == nil && d.opts.Inspector != nil {
		stale, err = d.recount(ctx, live)
	}
	if err != nil {
		return Removal{}, false, fmt.Errorf("destroy: %w", err)
	}
	return PlanRemoval(d.t, live, d.opts), stale, nil
}

// recount adds what AMQP knows of the queues that may be deleted.
func (d *destroyer) recount(ctx context.Context, live Live) (stale bool, err error) {
	var queues []string
	for _, q := range d.t.Queues {
		if _, there := live.Queues[q.Name]; there && (d.opts.Destinations || Reserved(d.opts.Prefix, q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	now := make([]*LiveQueue, len(queues))
	errs := sideBySide(d.conn, len(queues), func(s *session, i int) (err error) {
		now[i], err = countQueue(ctx, s, queues[i])
		return objectFailed(KindQueue, queues[i], err)
	})
	stale = true
	for i, name := range queues {
		if now[i] == nil {
			continue
		}
		q := live.Queues[name]
		q.Messages, q.Consumers = max(q.Messages, now[i].Messages), now[i].Consumers
		live.Queues[name] = q
		stale = stale && now[i].Messages == 0
	}
	return stale, cmp.Or(errs...)
}

// countQueue counts what is ready in a queue, and its consumers; nil if there is
// none.
func countQueue(ctx context.Context, s *session, queue string) (*LiveQueue, error) {
	var q LiveQueue
	err := s.do(ctx, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		q.Messages, q.Consumers = int64(state.Messages), int64(state.Consumers)
		return err
	})
	if isNotFound(err) {
		return nil, nil
	}
	return &q, err
}
