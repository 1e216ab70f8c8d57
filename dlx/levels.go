package dlx

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/foreign"
)

// Layouts of other systems, which Levels takes.
const (
	LayoutNServiceBus = foreign.NServiceBus
	LayoutCelery      = foreign.Celery
)

// HeaderNServiceBusDelay is on messages that NServiceBus delays, an int32 in seconds.
const HeaderNServiceBusDelay = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"

// LevelsConfig configures delays on the queues of another system.
type LevelsConfig struct {
	// Layout is "nservicebus" (its transport's delay infrastructure v2) or "celery"
	// (native delayed delivery of Celery 5.5 and kombu 5.5).
	Layout string
	// Prefix begins the names of what rabbitdelay adds: the parked queue and route
	// queues. Default "delay".
	Prefix string
	// QueueType is that of the other system. Default topology.Quorum, and the only
	// one with NServiceBus; with Celery it is its setting
	// broker_native_delayed_delivery_queue_type. Classic queues drop a message whose
	// destination is gone.
	QueueType topology.QueueType
}

// WithDefaults fills in what is not set. There is no default for Layout.
func (c LevelsConfig) WithDefaults() LevelsConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	c.QueueType = cmp.Or(c.QueueType, topology.Quorum)
	return c
}

// Validate checks the configuration after WithDefaults. It finds every wrong
// field; each is a *topology.FieldError in the joined error.
func (c LevelsConfig) Validate() error {
	c = c.WithDefaults()
	errs := []error{checkNames("levels", c.Prefix, c.QueueType)}
	switch {
	case !foreign.IsLayout(c.Layout):
		errs = append(errs, &topology.FieldError{Of: "levels", Field: "Layout", Value: c.Layout, Want: "celery or nservicebus"})
	case c.Layout == LayoutNServiceBus && c.QueueType == topology.Classic:
		errs = append(errs, &topology.FieldError{Of: "levels", Field: "QueueType", Value: string(c.QueueType), Want: "quorum; NServiceBus has its delays in no others"})
	}
	return errors.Join(errs...)
}

// Levels delays on the queues that NServiceBus and Celery have for their own
// delayed messages: 28 levels, each of twice the delay of the one below, the
// lowest of a second. It declares what they declare, so that either may come first,
// and leaves their bindings alone. It implements amqpx.Strategy and is safe for
// concurrent use.
//
// The delivery exchange is theirs, and has no alternate exchange. A message whose
// destination is gone when it is due stays in the last queue it was in, which
// tries again every few minutes; 32 of them stop that queue for everybody. A policy
// can give the exchange one, see docs/wire.md.
type Levels struct {
	positional
	queueType topology.QueueType
}

// NewLevels makes the strategy from a configuration, after WithDefaults and
// Validate.
func NewLevels(c LevelsConfig) (*Levels, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	l, err := newLayout(LayoutBinary, nil, time.Second) // their numbers are those of binary
	if err != nil {
		return nil, err
	}
	l.tag = c.Layout
	p := positional{strategy: c.Layout, prefix: c.Prefix, deliver: foreign.Delivery(c.Layout), layout: l}
	return &Levels{
		positional: newPositional(p, func(i int, _ int64) string { return foreign.Level(c.Layout, i) }),
		queueType:  c.QueueType,
	}, nil
}

// Name is the layout's.
func (s *Levels) Name() string { return s.strategy }

// Prefix begins the names of what is not the other system's.
func (s *Levels) Prefix() string { return s.prefix }

// MaxDelay is 2^28-1 seconds, about 8 years and a half.
func (s *Levels) MaxDelay() time.Duration { return s.layout.longest() }

// Resolution returns the step to which delays are rounded up, a second.
func (s *Levels) Resolution() time.Duration { return s.layout.resolution }

// Topology is the parked queue, and the levels as the other system declares them.
func (s *Levels) Topology() topology.Topology {
	t := topology.ParkedTopology(s.prefix)
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: s.deliver, Kind: "topic"})
	above := ""
	for i, names := range slices.Backward(s.names) {
		name, next := names[1], s.deliver
		if i > 0 {
			next = s.names[i-1][1]
		}
		q := delayQueue(name, s.layout.ttl(i, 1), next, s.queueType)
		q.DeliveryLimit, q.Overflow = nil, argument.RejectPublish // as the other system has it
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: name, Kind: "topic"})
		t.Queues = append(t.Queues, q)
		t.Bindings = append(t.Bindings,
			topology.Binding{Exchange: name, Queue: name, RoutingKey: above + "1.#"},
			topology.Binding{Exchange: name, ToExchange: next, RoutingKey: above + "0.#"})
		above += "*."
	}
	return t
}

// Bindings connect the other system's delivery exchange with the destination's
// target queue, by the exact number of digits. They stand beside the other
// system's own, which begin with "#": by those a message for "a.b" reaches "b"
// too. A queue to which both lead gets a message once.
func (s *Levels) Bindings(dest topology.Destination) []topology.Binding {
	return s.bindings(dest)
}

// Route returns the level and the routing key for delay, rounded up to seconds.
// With a tolerance it returns the delay up to delay+tolerance that needs the fewest
// hops. With NServiceBus it has the header that its delayed messages have.
//
// Its errors are those of Bucket.Route.
func (s *Levels) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	r, err := s.route(dest, delay, tolerance)
	if s.strategy == LayoutNServiceBus && r.Delay > 0 {
		r.Headers = map[string]any{HeaderNServiceBusDelay: int32(r.Delay / time.Second)}
	}
	return r, err
}
