package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
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
		if !stale || !errors.Is(removal.Refusal(), topology.ErrNotEmpty) || time.Now().After(deadline) {
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
func (d *destroyer) look(ctx context.Context) (r topology.Removal, stale bool, err error) {
	found, err := d.inspect(ctx, d.t)
	if err == nil && found.BindingsKnown { // AMQP knows no others
		stale, err = d.recount(ctx, found)
	}
	if err != nil {
		return topology.Removal{}, false, fmt.Errorf("destroy: %w", err)
	}
	return topology.PlanRemoval(d.t, found, d.opts), stale, nil
}

// recount adds what AMQP knows of the queues that may be deleted.
func (d *destroyer) recount(ctx context.Context, found topology.Live) (stale bool, err error) {
	var queues []string
	for _, q := range d.t.Queues {
		if _, there := found.Queues[q.Name]; there && (d.opts.Destinations || topology.Reserved(d.opts.Prefix, q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	now := make([]*topology.LiveQueue, len(queues))
	errs := sideBySide(d.Conn, len(queues), func(s *session, i int) (err error) {
		now[i], err = countQueue(ctx, s, queues[i])
		return objectFailed(topology.KindQueue, queues[i], err)
	})
	stale = true
	for i, name := range queues {
		if now[i] == nil {
			continue
		}
		q := found.Queues[name]
		q.Messages, q.Consumers = max(q.Messages, now[i].Messages), now[i].Consumers
		found.Queues[name] = q
		stale = stale && now[i].Messages == 0
	}
	return stale, cmp.Or(errs...)
}
