package removal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

// QueueCount is what is in a queue, or in the plugin's exchange.
type QueueCount struct {
	Queue     string `json:"queue"`
	Messages  int64  `json:"messages"`
	Consumers int64  `json:"consumers,omitempty"`
	// Delay reports whether the messages wait there for their delay.
	Delay bool `json:"delay"`
}

// String is "2 messages" or, without any, "1 consumer".
func (c QueueCount) String() string {
	if c.Messages > 0 {
		return counted(c.Messages, "message")
	}
	return counted(c.Consumers, "consumer")
}

// ErrNotEmpty is wrapped by every *NotEmptyError.
var ErrNotEmpty = errors.New("queues hold messages")

// NotEmptyError lists the queues that hold messages, for which Destroy refuses.
type NotEmptyError struct {
	Queues []QueueCount // those that are not empty
	Total  int64
	Bound  *int64 // Options.Messages
}

func (e *NotEmptyError) Error() string {
	var delayed int64
	for _, q := range e.Queues {
		if q.Delay {
			delayed += q.Messages
		}
	}
	advice := "let them drain"
	if e.Bound != nil {
		advice = fmt.Sprintf("at most %d may be deleted", *e.Bound)
	}
	return fmt.Sprintf("refused: %s in %s, %d of them waiting in delay queues (%s); %s",
		counted(e.Total, "message"), counted(int64(len(e.Queues)), "queue"), delayed, listCounts(e.Queues, func(q QueueCount) int64 { return q.Messages }), advice)
}

// Unwrap makes errors.Is(err, ErrNotEmpty) true.
func (e *NotEmptyError) Unwrap() error { return ErrNotEmpty }

// ErrConsumers is wrapped by every *ConsumersError.
var ErrConsumers = errors.New("queues have consumers")

// ConsumersError lists the queues with consumers among those to be deleted.
type ConsumersError struct{ Queues []QueueCount }

func (e *ConsumersError) Error() string {
	return fmt.Sprintf("refused: consumers are attached (%s); stop them first",
		listCounts(e.Queues, func(q QueueCount) int64 { return q.Consumers }))
}

// Unwrap makes errors.Is(err, ErrConsumers) true.
func (e *ConsumersError) Unwrap() error { return ErrConsumers }

const maxListed = 12

// listCounts is "orders 2, mails 1", cut where it gets long.
func listCounts(queues []QueueCount, count func(QueueCount) int64) string {
	var parts []string
	for _, q := range queues[:min(len(queues), maxListed)] {
		parts = append(parts, fmt.Sprintf("%s %d", q.Queue, count(q)))
	}
	if more := len(queues) - maxListed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more queues", more))
	}
	return strings.Join(parts, ", ")
}

// ErrUnseen is the reason why Destroy refuses without the management API.
var ErrUnseen = errors.New("AMQP alone does not show unacknowledged messages, messages in transit between queues, or other users of the layout")

// UnavailableError lists the queues that do not answer among those to be deleted, for which Destroy refuses with Force
// too: nobody can tell how many messages would go.
type UnavailableError struct{ Queues []string }

func (e *UnavailableError) Error() string {
	names := e.Queues[:min(len(e.Queues), maxListed)]
	text := strings.Join(names, ", ")
	if more := len(e.Queues) - len(names); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return fmt.Sprintf("refused: %s without a leader, or on a node that is down (%s), so the number of their messages is unknown; start the nodes that are down",
		counted(int64(len(e.Queues)), "queue"), text)
}

// Unwrap makes errors.Is(err, ErrUnseen) true.
func (e *UnavailableError) Unwrap() error { return ErrUnseen }

// errHeld is the like of the plugin's exchange.
var errHeld = errors.New("the number of messages in the x-delayed-message exchange cannot be read")

// errUncounted is the like of the native strategy's queues, with Force too: who forces something
// must still be told how many go.
var errUncounted = fmt.Errorf("messages that wait for an instant are not counted by AMQP; give the management API: %w", ErrUnseen)

// refusal is why nothing may be touched: messages that may not go, or not so many, consumers, a
// broker that shows too little, and destinations' queues and the file's own objects that are not
// the ones described. The names of delay queues belong to the strategies, however they were declared.
func (x *remover) refusal(steps []Step) error {
	full, busy := &NotEmptyError{Bound: x.opts.Messages}, &ConsumersError{}
	var going, refused, native bool
	var hidden []error
	silent := &UnavailableError{}
	declared := map[object]bool{}
	for _, s := range steps {
		if s.Action != ActionDelete {
			continue
		}
		going = true
		declared[s.object()] = s.part == declaredPart
		count := QueueCount{Queue: s.Name, Messages: s.Messages, Consumers: s.Consumers, Delay: s.part == ownPart}
		if s.Messages > 0 {
			full.Queues, full.Total = append(full.Queues, count), full.Total+s.Messages
			refused = refused || !x.forced(s.part)
		}
		if s.Consumers > 0 && !x.forced(s.part) {
			busy.Queues = append(busy.Queues, count)
		}
		switch s.Kind {
		case topology.KindQueue:
			if x.live.Queues[s.Name].Unavailable != "" {
				silent.Queues = append(silent.Queues, s.Name)
			}
			l, ok := naming.LayoutOf(x.opts.Prefix, s.Name)
			native = native || ok && l.Native()
		case topology.KindExchange:
			if e, _ := x.t.Exchange(s.Name); e.Kind == argument.DelayedExchange && !x.live.Exchanges[s.Name].HeldKnown {
				hidden = append(hidden, errHeld)
			}
		case topology.KindBinding:
		}
	}
	var errs []error
	if len(silent.Queues) > 0 {
		errs = append(errs, silent)
	}
	if refused || x.opts.Messages != nil && full.Total > *x.opts.Messages {
		errs = append(errs, full)
	}
	if len(busy.Queues) > 0 {
		errs = append(errs, busy)
	}
	if native && !x.live.BindingsKnown {
		errs = append(errs, errUncounted)
	}
	if !x.opts.Force {
		errs = append(errs, hidden...)
		if going && !x.live.BindingsKnown {
			errs = append(errs, ErrUnseen)
		}
		p := plan.Compare(x.t, x.live)
		p.Steps = slices.DeleteFunc(p.Steps, func(s plan.Step) bool { return !declared[object{s.Kind, s.Name}] })
		errs = append(errs, p.Refusal(true))
	}
	return errors.Join(errs...)
}
