package amqpx

import (
	"context"
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Hook observes a Client: metrics and tracing. It is any value that implements
// at least one of SendHook, HandleHook and StateHook. Hooks are called
// synchronously, from many goroutines, and should return at once. A panic in one is
// logged, and changes nothing.
type Hook any

// SendHook sees every message that is sent, retries and dead letters of
// consumers included.
type SendHook interface {
	// SendStart may add headers to the message (trace context) and returns the
	// context for the send. Headers with which the message would be too large are
	// dropped again. The context of a retry or a dead letter has the values of the
	// handler's.
	SendStart(ctx context.Context, m *Message) context.Context
	SendEnd(ctx context.Context, e SendEnd)
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

// HandleHook sees every run of a handler. HandleEnd is called when the
// message's fate is settled. After a failure that is when the broker has
// confirmed its retry or dead letter; other messages may have begun by then.
type HandleHook interface {
	HandleStart(ctx context.Context, d *Delivery) context.Context
	HandleEnd(ctx context.Context, e HandleEnd)
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

// StateHook sees the connections come and go.
type StateHook interface {
	ConnectionState(e StateEvent)
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
	Connection string // publish or consume
	State      State
	Attempt    int    // of StateConnecting: 1 is the first since a connection that held for Config.ReconnectMax
	Broker     string // of StateConnected: the broker's product and version
	Reason     string // of StateBlocked
	Err        error  // of StateDisconnected
}

func isHook(h Hook) bool {
	switch h.(type) {
	case SendHook, HandleHook, StateHook:
		return true
	}
	return false
}

// sameHook tells whether two pointers are the same, which would observe all twice.
func sameHook(a, b Hook) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	return x.Kind() == reflect.Pointer && y.Kind() == reflect.Pointer && x.Type().Elem().Size() > 0 && a == b
}

// hooks are Config.Hooks sorted by kind.
type hooks struct {
	log    *zap.Logger
	send   []SendHook
	handle []HandleHook
	state  []StateHook
}

func newHooks(all []Hook, log *zap.Logger) hooks {
	h := hooks{log: log}
	for _, x := range all {
		if s, ok := x.(SendHook); ok {
			h.send = append(h.send, s)
		}
		if s, ok := x.(HandleHook); ok {
			h.handle = append(h.handle, s)
		}
		if s, ok := x.(StateHook); ok {
			h.state = append(h.state, s)
		}
	}
	return h
}

// start runs a hook that gives a context; ctx stays if it gives none.
func (h hooks) start(ctx context.Context, hook func() context.Context) context.Context {
	guard.Observe(h.log, "hook", func() {
		if its := hook(); its != nil {
			ctx = its
		}
	})
	return ctx
}

func (h hooks) sendStart(ctx context.Context, m *Message) context.Context {
	for _, x := range h.send {
		ctx = h.start(ctx, func() context.Context { return x.SendStart(ctx, m) })
	}
	return ctx
}

func (h hooks) sendEnd(ctx context.Context, e SendEnd) {
	for _, x := range h.send {
		guard.Observe(h.log, "hook", func() { x.SendEnd(ctx, e) })
	}
}

func (h hooks) handleStart(ctx context.Context, d *Delivery) context.Context {
	for _, x := range h.handle {
		ctx = h.start(ctx, func() context.Context { return x.HandleStart(ctx, d) })
	}
	return ctx
}

func (h hooks) handleEnd(ctx context.Context, e HandleEnd) {
	for _, x := range h.handle {
		guard.Observe(h.log, "hook", func() { x.HandleEnd(ctx, e) })
	}
}

func (h hooks) connectionState(e StateEvent) {
	for _, x := range h.state {
		guard.Observe(h.log, "hook", func() { x.ConnectionState(e) })
	}
}
