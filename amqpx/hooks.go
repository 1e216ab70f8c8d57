package amqpx

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Hook observes a Client, for metrics and tracing. Each function may be nil. The functions are called synchronously,
// from many goroutines, and should return quickly. If one of them panics, the panic is logged and has no other effect.
type Hook struct {
	// SendStart is called for every message that is sent, including the retries and dead letters of consumers, and
	// returns the context for the send. Entries that it writes to headers, such as a trace context, become headers
	// of the message and replace existing headers of the same name. Entries that AMQP cannot carry, or that would
	// make the message too large, are left out. The context of a retry or a dead letter has the values of the
	// handler's context.
	SendStart func(ctx context.Context, m Message, headers amqp.Table) context.Context
	// SendEnd is called when a send has finished, with the context that SendStart returned.
	SendEnd func(ctx context.Context, e SendEnd)

	// HandleStart is called before each delivery is handled, and returns the context for its handler.
	HandleStart func(ctx context.Context, d *Delivery) context.Context
	// HandleEnd is called when the delivery is settled, with the context that HandleStart returned. After a failure, a
	// delivery is settled when the broker has confirmed its retry or dead letter. Handlers of other messages may have
	// been started by then.
	HandleEnd func(ctx context.Context, e HandleEnd)

	// ConnectionState is called when the state of a connection changes.
	ConnectionState func(e StateEvent)
}

// SendEnd is the result of sending one message.
type SendEnd struct {
	ID string
	// Destination has either Queue, or Exchange and RoutingKey. For a dead letter it is the dead-letter queue.
	Destination topology.Destination
	Strategy    string
	Hops        int           // number of delay queues that the message passes through
	Delay       time.Duration // the delay of its route; 0 if there was no route
	Tries       int           // number of times the message was published
	Duration    time.Duration // from SendStart to the confirm or the error
	Err         error         // nil if the message was confirmed
}

// Outcome says how a delivery was settled.
type Outcome string

// Outcomes of a delivery.
const (
	OutcomeAcked        Outcome = "acked"
	OutcomeRetried      Outcome = "retried"       // published again with a delay, then acknowledged
	OutcomeSnoozed      Outcome = "snoozed"       // the same, after Snooze
	OutcomeDeadLettered Outcome = "dead-lettered" // published to the dead-letter queue, then acknowledged
	OutcomeRequeued     Outcome = "requeued"      // returned to the queue by Requeue, or because no retry or dead letter could be published
	OutcomeReturned     Outcome = "returned"      // arrived before its due time: published again for the rest of its delay
	OutcomeLost         Outcome = "lost"          // the connection was lost before the message was settled, so the broker will redeliver it
)

// HandleEnd is the result of handling and settling one delivery.
type HandleEnd struct {
	Delivery *Delivery
	Outcome  Outcome
	Lateness time.Duration // the handler's start minus Delivery.DueSince, by this process's clock; negative if early, 0 without a due time
	Duration time.Duration // how long the handler ran
	Panicked bool
	Err      error // the handler's error
}

// State is the state of a connection.
type State string

// States of a connection.
const (
	StateConnecting   State = "connecting"
	StateConnected    State = "connected"
	StateBlocked      State = "blocked"   // the broker does not accept publishes because of a memory or disk alarm
	StateUnblocked    State = "unblocked" // the alarm is over; only in a StateEvent, because the state is then connected again
	StateDisconnected State = "disconnected"
	StateClosed       State = "closed"
)

// StateEvent is a state change of one of the client's connections.
type StateEvent struct {
	Connection string // publish, consume, or "consume QUEUE" for a consumer that has its own connection
	State      State
	Attempt    int    // for StateConnecting: 1 is the first attempt of all, or since a connection that lasted longer than Config.ReconnectMax
	Broker     string // for StateConnected: the broker's product and version
	Reason     string // for StateBlocked: the broker's reason
	Err        error  // for StateDisconnected: why the connection was lost or could not be made
}

// hooks holds the hooks of Config.Hooks.
type hooks struct {
	all   []Hook // wrapped so that panics are logged
	sends bool   // whether any of them observes sends
}

func newHooks(all []Hook, log *zap.Logger) hooks {
	h := hooks{all: make([]Hook, len(all))}
	for i, x := range all {
		h.all[i] = guarded(x, log)
		h.sends = h.sends || x.SendStart != nil || x.SendEnd != nil
	}
	return h
}

// guarded wraps the functions of x so that panics are logged. If a function returns a nil context, the previous
// one is kept.
func guarded(x Hook, log *zap.Logger) (g Hook) {
	call := func(f func()) { guard.Observe(log, "hook", f) }
	start := func(ctx context.Context, f func() context.Context) context.Context {
		call(func() {
			if its := f(); its != nil {
				ctx = its
			}
		})
		return ctx
	}
	if x.SendStart != nil {
		g.SendStart = func(ctx context.Context, m Message, headers amqp.Table) context.Context {
			return start(ctx, func() context.Context { return x.SendStart(ctx, m, headers) })
		}
	}
	if x.SendEnd != nil {
		g.SendEnd = func(ctx context.Context, e SendEnd) { call(func() { x.SendEnd(ctx, e) }) }
	}
	if x.HandleStart != nil {
		g.HandleStart = func(ctx context.Context, d *Delivery) context.Context {
			return start(ctx, func() context.Context { return x.HandleStart(ctx, d) })
		}
	}
	if x.HandleEnd != nil {
		g.HandleEnd = func(ctx context.Context, e HandleEnd) { call(func() { x.HandleEnd(ctx, e) }) }
	}
	if x.ConnectionState != nil {
		g.ConnectionState = func(e StateEvent) { call(func() { x.ConnectionState(e) }) }
	}
	return g
}

// sendStart calls the SendStart hooks. It returns the context for the send, and a copy of the message that includes the
// headers that hooks have added.
func (h hooks) sendStart(ctx context.Context, m Message) (context.Context, Message) {
	if !h.sends {
		return ctx, m
	}
	added := amqp.Table{}
	for _, x := range h.all {
		if x.SendStart != nil {
			ctx = x.SendStart(ctx, m, added)
		}
	}
	m.added = added
	return ctx, m
}

func (h hooks) sendEnd(ctx context.Context, e SendEnd) {
	for _, x := range h.all {
		if x.SendEnd != nil {
			x.SendEnd(ctx, e)
		}
	}
}

func (h hooks) handleStart(ctx context.Context, d *Delivery) context.Context {
	for _, x := range h.all {
		if x.HandleStart != nil {
			ctx = x.HandleStart(ctx, d)
		}
	}
	return ctx
}

func (h hooks) handleEnd(ctx context.Context, e HandleEnd) {
	for _, x := range h.all {
		if x.HandleEnd != nil {
			x.HandleEnd(ctx, e)
		}
	}
}

func (h hooks) connectionState(e StateEvent) {
	for _, x := range h.all {
		if x.ConnectionState != nil {
			x.ConnectionState(e)
		}
	}
}
