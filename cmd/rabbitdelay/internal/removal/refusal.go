package removal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// QueueCount contains the counts of a queue, or of the plugin's exchange.
type QueueCount struct {
	Queue     string `json:"queue"`
	Messages  int64  `json:"messages"`
	Consumers int64  `json:"consumers,omitempty"`
	// Delay reports whether the messages are delayed messages that are not due yet.
	Delay bool `json:"delay"`
}

// String returns the number of messages, such as "2 messages". If there are none, it returns the number of consumers,
// such as "1 consumer".
func (c QueueCount) String() string {
	if c.Messages > 0 {
		return shown.Count(c.Messages, "message", "messages")
	}
	return shown.Count(c.Consumers, "consumer", "consumers")
}

// ErrNotEmpty is wrapped by every *NotEmptyError.
var ErrNotEmpty = errors.New("queues contain messages")

// NotEmptyError lists the queues whose messages caused the refusal.
type NotEmptyError struct {
	Queues []QueueCount // the queues that are not empty
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
	advice := "wait until they have drained"
	if e.Bound != nil {
		advice = fmt.Sprintf("at most %d may be deleted", *e.Bound)
	}
	return fmt.Sprintf("refused: %s in %s, %d of them waiting in delay queues (%s); %s",
		shown.Count(e.Total, "message", "messages"), shown.Count(int64(len(e.Queues)), "queue", "queues"), delayed, listCounts(e.Queues, func(q QueueCount) int64 { return q.Messages }), advice)
}

// Unwrap makes errors.Is(err, ErrNotEmpty) true.
func (e *NotEmptyError) Unwrap() error { return ErrNotEmpty }

// ErrConsumers is wrapped by every *ConsumersError.
var ErrConsumers = errors.New("queues have consumers")

// ConsumersError lists the queues to be deleted that have consumers.
type ConsumersError struct{ Queues []QueueCount }

func (e *ConsumersError) Error() string {
	return fmt.Sprintf("refused: consumers are attached (%s); stop them first",
		listCounts(e.Queues, func(q QueueCount) int64 { return q.Consumers }))
}

// Unwrap makes errors.Is(err, ErrConsumers) true.
func (e *ConsumersError) Unwrap() error { return ErrConsumers }

const maxListed = 12

// listCounts formats counts as "orders 2, mails 1", and shortens long lists.
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

// ErrUnseen is the reason to refuse without the management API. It is also wrapped by *UnavailableError.
var ErrUnseen = errors.New("AMQP alone does not show unacknowledged messages, messages in transit between queues, or other users of the layout")

// UnavailableError lists the queues that would be deleted but do not answer. The removal is refused even with Force,
// because the number of messages that would be deleted is unknown.
type UnavailableError struct{ Queues []string }

func (e *UnavailableError) Error() string {
	names := e.Queues[:min(len(e.Queues), maxListed)]
	text := strings.Join(names, ", ")
	if more := len(e.Queues) - len(names); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return fmt.Sprintf("refused: %s without a leader, or on a node that is down (%s), so the number of their messages is unknown; start the nodes that are down",
		shown.Count(int64(len(e.Queues)), "queue", "queues"), text)
}

// Unwrap makes errors.Is(err, ErrUnseen) true.
func (e *UnavailableError) Unwrap() error { return ErrUnseen }

// UncountedError lists the queues that would be deleted and whose messages the management API has not counted
// yet. They may contain messages that are not ready.
type UncountedError struct{ Queues []string }

func (e *UncountedError) Error() string {
	names := e.Queues[:min(len(e.Queues), maxListed)]
	text := strings.Join(names, ", ")
	if more := len(e.Queues) - len(names); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return fmt.Sprintf("refused: the management API has not counted the messages of %s yet (%s), so the number of their messages that are not ready is unknown; try again in 10 s. If the broker's configuration disables statistics (management_agent.disable_metrics_collector), it never counts them; --force deletes the queues together with all their messages",
		shown.Count(int64(len(e.Queues)), "queue", "queues"), text)
}

// Unwrap makes errors.Is(err, ErrUnseen) true.
func (e *UncountedError) Unwrap() error { return ErrUnseen }

// errHeld is the reason to refuse if the messages in the plugin's exchange cannot be counted.
var errHeld = errors.New("the number of messages in the x-delayed-message exchange cannot be read")

// errUncounted is the reason to refuse if messages in the native strategy's queues cannot be counted. It applies even
// with Force, because the caller must learn how many messages are deleted.
var errUncounted = fmt.Errorf("AMQP does not count messages that wait for their due time; configure the management API: %w", ErrUnseen)

// refusal returns the reason why nothing may be deleted, or nil. Reasons are messages that must not be deleted or
// exceed the limit, consumers, a broker that does not show enough, and destinations' queues or the file's own objects
// that differ from their description. Delay queues belong to the strategies because of their names, regardless of how
// they were declared.
func (x *remover) refusal(steps []Step) error {
	full, busy := &NotEmptyError{Bound: x.opts.Messages}, &ConsumersError{}
	var going, refused, native bool
	var hidden []error
	silent, uncounted := &UnavailableError{}, &UncountedError{}
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
			switch q := x.live.Queues[s.Name]; {
			case q.Unavailable != "":
				silent.Queues = append(silent.Queues, s.Name)
			case q.Uncounted || q.ReadyOnly:
				uncounted.Queues = append(uncounted.Queues, s.Name)
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
	if len(uncounted.Queues) > 0 && (!x.opts.Force || x.opts.Messages != nil) {
		errs = append(errs, uncounted)
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
