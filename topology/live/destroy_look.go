package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// plan looks at the broker and decides. What only the management API counts may be
// over since, so that is looked at again before it counts.
func (d *destroyer) plan(ctx context.Context) error {
	for deadline := time.Now().Add(statsAge); ; {
		now, stale, err := d.deletable(ctx)
		if err != nil {
			return err
		}
		d.removal = now
		if !stale || !errors.Is(now.Refusal(), removal.ErrNotEmpty) || time.Now().After(deadline) {
			return nil
		}
		if wait.For(ctx, countEvery) != nil {
			return context.Cause(ctx)
		}
	}
}

// deletable returns what would be deleted now. AMQP knows ready messages and consumers as
// they are, the management API all messages as they were some seconds ago; stale
// reports that only the latter saw some.
func (d *destroyer) deletable(ctx context.Context) (r removal.Plan, stale bool, err error) {
	found, err := d.inspect(ctx, d.t)
	if err == nil && found.BindingsKnown { // AMQP knows no others
		stale, err = d.recount(ctx, found)
	}
	if err != nil {
		return removal.Plan{}, false, fmt.Errorf("destroy: %w", err)
	}
	return removal.Decide(d.t, found, d.opts), stale, nil
}

// recount adds what AMQP knows of the queues that may be deleted.
func (d *destroyer) recount(ctx context.Context, found observed.Broker) (stale bool, err error) {
	var queues []string
	for _, q := range d.t.Queues {
		if _, there := found.Queues[q.Name]; there && (d.opts.Destinations || naming.Reserved(d.opts.Prefix, q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	now := make([]*observed.Queue, len(queues))
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
