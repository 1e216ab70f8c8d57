package amqpx

import (
	"cmp"
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
)

// handling implements consume.Handling: it calls the application's hooks, handler and policies for one delivery.
type handling struct {
	hooks    hooks
	handler  Handler // wrapped in the middleware
	o        *consumeOptions
	received *consume.Delivery
	d        *Delivery
}

func (h *handling) Start(ctx context.Context) context.Context { return h.hooks.handleStart(ctx, h.d) }

func (h *handling) Handle(ctx context.Context) error {
	if h.d.ID == "" {
		defer func() { h.received.AssignID(h.d.ID) }() // Client.Forward may have given the message an id, which retries keep
	}
	return h.handler(ctx, h.d)
}

func (h *handling) ApplyPolicy(err error) error {
	if h.o.policy == nil {
		return err
	}
	guard.Observe(h.o.log, "WithErrorPolicy's function", func() { err = cmp.Or(h.o.policy(h.d, err), err) })
	return consume.PolicyApplied(err)
}

func (h *handling) Backoff(err error, policy time.Duration) time.Duration {
	delay := policy
	if h.o.backoff != nil {
		guard.Observe(h.o.log, "WithBackoff's function", func() { delay = consume.UsableDelay(h.o.backoff(h.d, err)) })
	}
	return delay
}

func (h *handling) End(ctx context.Context, e consume.End) {
	h.hooks.handleEnd(ctx, HandleEnd{
		Delivery: h.d, Outcome: Outcome(e.Outcome), Lateness: e.Lateness, Duration: e.Duration, Panicked: e.Panicked, Err: e.Err,
	})
}
