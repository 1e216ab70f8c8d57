package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Inspector reads what is on a broker. NewAMQPInspector works with a plain
// connection; package topology/mgmt reads more, through the management API.
type Inspector interface {
	// Inspect reads the objects that want names, and may read others. An object
	// that is not there is missing from the answer; that is no error.
	Inspect(ctx context.Context, want Topology) (Live, error)
}

// Live is what an Inspector found.
type Live struct {
	Source    string // how it was read: "management API" or "AMQP"
	Exchanges map[string]LiveExchange
	Queues    map[string]LiveQueue
	Bindings  []Binding
	// BindingsKnown tells whether Bindings is complete. AMQP has no way to read
	// them.
	BindingsKnown bool
	Policies      []Policy
	// PoliciesKnown tells whether Policies is complete. They need the
	// management API and a user with the tag policymaker or administrator.
	PoliciesKnown bool
}

// LiveExchange is an exchange that exists.
type LiveExchange struct {
	// ArgumentsKnown tells whether the fields below it were read. If not,
	// Mismatches has what the broker said about the wanted ones.
	ArgumentsKnown bool
	Kind           string
	Durable        bool
	AutoDelete     bool
	Internal       bool
	Arguments      amqp.Table // all of them, alternate-exchange included
	Mismatches     []Mismatch

	// Held is how many messages an x-delayed-message exchange holds on the node
	// that was asked, if HeldKnown.
	Held      int64
	HeldKnown bool
}

// LiveQueue is a queue that exists.
type LiveQueue struct {
	// ArgumentsKnown tells whether the fields down to Arguments were read. If
	// not, Mismatches has what the broker said about the wanted ones.
	ArgumentsKnown bool
	Type           QueueType
	Durable        bool
	AutoDelete     bool
	Exclusive      bool
	Arguments      amqp.Table
	Mismatches     []Mismatch

	// Messages is how many it holds: over AMQP those ready for delivery; by the
	// management API all, unacknowledged and dead letters under way included,
	// but up to 5 s old.
	Messages  int64
	Consumers int64

	// EffectivePolicy is the merged definition of the policies that apply to
	// it; nil if none or unknown. Policy and OperatorPolicy are their names.
	EffectivePolicy map[string]any
	Policy          string
	OperatorPolicy  string
}

// Policy is a policy of a virtual host: it sets arguments of the queues and
// exchanges whose names match.
type Policy struct {
	Name       string
	Operator   bool   // an operator policy, which users cannot override
	Pattern    string // regular expression, not anchored
	ApplyTo    string // all, queues, classic_queues, quorum_queues, streams, exchanges
	Priority   int    // of the matching ones the highest applies
	Definition map[string]any
}

// inequivalent takes the broker's text apart that says why an object exists
// with another argument. The text is cut at 255 bytes, so its end may be missing.
var (
	inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for (?:queue|exchange) '`)
	receivedText = regexp.MustCompile(`': received (.*) but current is (.*)$`)
	typedValue   = regexp.MustCompile(`^the value '(.*)' of type '(\w+)'$`)
	plainValue   = regexp.MustCompile(`^'(.*)'$`)
)

// brokerText is a value as the broker wrote it.
type brokerText string

// parseInequivalent reads a Mismatch from the error of a declaration; wanted is
// the table that was declared.
func parseInequivalent(err error, wanted amqp.Table) (Mismatch, bool) {
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
		return Mismatch{}, false
	}
	arg := inequivalent.FindStringSubmatch(e.Reason)
	if arg == nil {
		return Mismatch{}, false
	}
	m := Mismatch{Argument: arg[1], Have: brokerText("another value")}
	if values := receivedText.FindStringSubmatch(e.Reason); values != nil {
		m.Want, m.Have = brokerValue(values[1]), brokerValue(values[2])
	}
	if m.Argument == "type" { // of an exchange; the other properties are booleans
		if w, ok := m.Want.(brokerText); ok {
			m.Want = string(w)
		}
		if h, ok := m.Have.(brokerText); ok {
			m.Have = string(h)
		}
	}
	if w, ok := wanted[m.Argument]; ok {
		m.Want = w
		if _, isText := w.(string); !isText {
			return m, true
		}
		if h, ok := m.Have.(brokerText); ok && receivedText.MatchString(e.Reason) {
			m.Have = string(h)
		}
	}
	return m, true
}

func brokerValue(text string) any {
	if text == "none" {
		return nil
	}
	if typed := typedValue.FindStringSubmatch(text); typed != nil {
		if typed[2] == "longstr" {
			return typed[1]
		}
		return brokerText(typed[1])
	}
	if plain := plainValue.FindStringSubmatch(text); plain != nil {
		return brokerText(plain[1])
	}
	return brokerText(text)
}

// NewAMQPInspector inspects with declarations only. It learns whether an object
// exists and whether it equals the wanted one (the first difference if not), by
// passive declaration and then by declaring it again as it is wanted. Bindings
// and policies stay unknown. The user needs the permission to configure the
// objects. An object that another process deletes between the two steps is
// created again.
func NewAMQPInspector(conn Conn) Inspector { return &amqpInspector{conn} }

type amqpInspector struct{ conn Conn }

// Inspect declares what is wanted, on a few channels.
func (i *amqpInspector) Inspect(ctx context.Context, want Topology) (Live, error) {
	live := Live{Source: "AMQP", Exchanges: map[string]LiveExchange{}, Queues: map[string]LiveQueue{}}
	exchanges := make([]*LiveExchange, len(want.Exchanges))
	errs := sideBySide(i.conn, len(exchanges), func(s *session, n int) (err error) {
		if exchanges[n], err = inspectExchange(ctx, s, want.Exchanges[n]); err != nil {
			return fmt.Errorf("inspect exchange %q: %w", want.Exchanges[n].Name, err)
		}
		return nil
	})
	if err := cmp.Or(errs...); err != nil {
		return Live{}, err
	}
	queues := make([]*LiveQueue, len(want.Queues))
	errs = sideBySide(i.conn, len(queues), func(s *session, n int) (err error) {
		if queues[n], err = inspectQueue(ctx, s, want.Queues[n]); err != nil {
			return fmt.Errorf("inspect queue %q: %w", want.Queues[n].Name, err)
		}
		return nil
	})
	if err := cmp.Or(errs...); err != nil {
		return Live{}, err
	}
	for n, found := range exchanges {
		if found != nil {
			live.Exchanges[want.Exchanges[n].Name] = *found
		}
	}
	for n, found := range queues {
		if found != nil {
			live.Queues[want.Queues[n].Name] = *found
		}
	}
	return live, nil
}

func inspectExchange(ctx context.Context, s *session, e Exchange) (*LiveExchange, error) {
	err := s.do(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, nil)
	})
	if isNotFound(err) {
		return nil, nil
	}
	if err == nil {
		err = s.do(ctx, func(ch *amqp.Channel) error { return declareExchange(ch, e, false) })
	}
	if m, ok := parseInequivalent(err, e.Table()); ok {
		return &LiveExchange{Mismatches: []Mismatch{m}}, nil
	}
	if err != nil {
		return nil, err
	}
	return &LiveExchange{}, nil
}

func inspectQueue(ctx context.Context, s *session, q Queue) (*LiveQueue, error) {
	live := &LiveQueue{}
	err := s.do(ctx, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		live.Messages, live.Consumers = int64(state.Messages), int64(state.Consumers)
		return err
	})
	if isNotFound(err) {
		return nil, nil
	}
	if err == nil {
		err = s.do(ctx, func(ch *amqp.Channel) error { return declareQueue(ch, q, false) })
	}
	if m, ok := parseInequivalent(err, q.Table()); ok {
		live.Mismatches = []Mismatch{m}
		return live, nil
	}
	if err != nil {
		return nil, err
	}
	return live, nil
}

func isNotFound(err error) bool { return isCode(err, amqp.NotFound) }

func isCode(err error, code int) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == code
}
