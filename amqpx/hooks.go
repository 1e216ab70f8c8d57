package amqpx

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Hook observes a Client: metrics and tracing. Each function may be nil. They are called
// synchronously, from many goroutines, and should return at once. A panic in one is
// logged, and changes nothing.
type Hook struct {
	// SendStart is called for every message that is sent, retries and dead letters of
	// consumers included, and returns the context for the send. What it writes into added,
	// such as a trace context, becomes headers of the message in place of those of the same
	// name; those that AMQP cannot carry, or with which the message would be too large, are
	// left out. The context of a retry or a dead letter has the values of the handler's.
	SendStart func(ctx context.Context, m Message, added amqp.Table) context.Context
	// SendEnd is called with the context of SendStart.
	SendEnd func(ctx context.Context, e SendEnd)

	// HandleStart is called for every run of a handler, and returns its context.
	HandleStart func(ctx context.Context, d *Delivery) context.Context
	// HandleEnd is called with that context when the message's fate is settled. After a
	// failure that is when the broker has confirmed its retry or dead letter; other
	// messages may have begun by then.
	HandleEnd func(ctx context.Context, e HandleEnd)

	// ConnectionState is called when the state of a connection changes.
	ConnectionState func(e StateEvent)
}

// SendEnd is the outcome of one message.
type SendEnd struct {
	ID string
	// Destination has Queue, or Exchange and RoutingKey. That of a dead letter is the
	// dead-letter queue.
	Destination topology.Destination
	Strategy    string
	Hops        int           // delay queues on the message's way
	Delay       time.Duration // the delay that it was given; 0 when none was found
	Tries       int           // how often it was published
	Duration    time.Duration // from SendStart to the confirm or the error
	Err         error         // nil: confirmed
}

// Outcome is what became of a delivery.
type Outcome string

// Outcomes of a delivery.
const (
	OutcomeAcked        Outcome = "acked"
	OutcomeRetried      Outcome = "retried"       // published again with a delay, then acknowledged
	OutcomeSnoozed      Outcome = "snoozed"       // the same, after Snooze
	OutcomeDeadLettered Outcome = "dead-lettered" // published to the dead-letter queue, then acknowledged
	OutcomeRequeued     Outcome = "requeued"      // returned to the queue, after Requeue, or because neither was possible
	OutcomeReturned     Outcome = "returned"      // it came before its instant: published again for the rest of its delay
	OutcomeLost         Outcome = "lost"          // the connection ended first: the broker delivers it again
)

// HandleEnd is the outcome of one delivery.
type HandleEnd struct {
	Delivery *Delivery
	Outcome  Outcome
	Lateness time.Duration // handler's start minus due instant; negative: early, by this process's clock
	Duration time.Duration // of the handler
	Panicked bool
	Err      error // the handler's error
}

// State of a connection.
type State string

// States of a connection.
const (
	StateConnecting   State = "connecting"
	StateConnected    State = "connected"
	StateBlocked      State = "blocked" // the broker reads no publishes: memory or disk alarm
	StateUnblocked    State = "unblocked"
	StateDisconnected State = "disconnected"
	StateClosed       State = "closed"
)

// StateEvent is a change of one of the client's connections.
type StateEvent struct {
	Connection string // publish, consume, or "consume QUEUE" for a consumer that has a connection of its own
	State      State
	Attempt    int    // of StateConnecting: 1 is the first since a connection that held for Config.ReconnectMax
	Broker     string // of StateConnected: the broker's product and version
	Reason     string // of StateBlocked
	Err        error  // of StateDisconnected
}

// hooks are Config.Hooks.
type hooks struct {
	all   []Hook // whose panics are logged
	sends bool   // one of them is for messages that are sent
}

func newHooks(all []Hook, log *zap.Logger) hooks {
	h := hooks{all: make([]Hook, len(all))}
	for i, x := range all {
		h.all[i] = guarded(x, log)
		h.sends = h.sends || x.SendStart != nil || x.SendEnd != nil
	}
	return h
}

// guarded is x with its panics logged. A context of its own that is nil counts as none.
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
		g.SendStart = func(ctx context.Context, m Message, added amqp.Table) context.Context {
			return start(ctx, func() context.Context { return x.SendStart(ctx, m, added) })
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

// sendStart returns the context for a send, and the message with what hooks add.
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
