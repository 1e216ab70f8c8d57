package dlx

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Layouts of other systems that Levels supports.
const (
	LayoutNServiceBus = foreign.NServiceBus
	LayoutCelery      = foreign.Celery
)

// LevelsConfig configures delays on the queues of another system.
type LevelsConfig struct {
	// Layout is "nservicebus" (the delay infrastructure v2 of its RabbitMQ transport) or "celery" (native delayed
	// delivery of Celery 5.5 and kombu 5.5). It is required.
	Layout string
	// Prefix is the start of the names of the objects that rabbitdelay adds: the parked queue and route queues. Default
	// "delay".
	Prefix string
	// QueueType is the queue type that the other system uses. The default is topology.Quorum, which is the only valid
	// type with NServiceBus. With Celery, set it to Celery's broker_native_delayed_delivery_queue_type. Classic queues
	// drop a message whose destination no longer exists.
	QueueType topology.QueueType
}

// withDefaults returns the configuration with defaults for unset fields. Layout has no default.
func (c LevelsConfig) withDefaults() LevelsConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	c.QueueType = cmp.Or(c.QueueType, topology.Quorum)
	return c
}

// validate applies the defaults and checks the configuration. It reports every invalid field as a *topology.FieldError
// in the joined error.
func (c LevelsConfig) validate() error {
	c = c.withDefaults()
	errs := []error{checkNames("levels", c.Prefix, c.QueueType)}
	switch {
	case !foreign.IsLayout(c.Layout):
		errs = append(errs, &topology.FieldError{Of: "levels", Field: "Layout", Value: c.Layout, Want: "celery or nservicebus"})
	case c.Layout == LayoutNServiceBus && c.QueueType == topology.Classic:
		errs = append(errs, &topology.FieldError{Of: "levels", Field: "QueueType", Value: string(c.QueueType), Want: "quorum, the only type that NServiceBus uses for delays"})
	}
	return errors.Join(errs...)
}

// Levels is a strategy that uses the delay queues of NServiceBus or Celery. These form 28 levels: the lowest delays
// messages by one second, and each higher level by twice as long as the one below it. Levels declares the same objects
// as the other system, so either of the two may start first, and it leaves that system's bindings alone. It implements
// amqpx.Strategy and is safe for concurrent use. The zero value is not usable; use NewLevels.
//
// The delivery exchange belongs to the other system and has no alternate exchange. A message whose destination no
// longer exists when it is due stays in the last level's queue, which retries every few minutes. Once 32 such messages
// have accumulated, that queue stops for all its users. A policy can give the exchange an alternate exchange; see
// docs/wire.md.
type Levels struct {
	positional
	queueType topology.QueueType
}

// NewLevels returns the levels strategy for a configuration. Its error joins a
// *topology.FieldError for each invalid field.
func NewLevels(c LevelsConfig) (*Levels, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	l, err := newLayout(LayoutBinary, nil, time.Second) // both systems write delays like the binary layout
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

// Name returns the name of the layout.
func (s *Levels) Name() string { return s.strategy }

// Prefix returns the start of the names of the objects that rabbitdelay adds.
func (s *Levels) Prefix() string { return s.prefix }

// MaxDelay returns 2^28-1 seconds, about eight and a half years.
func (s *Levels) MaxDelay() time.Duration { return s.layout.longest() }

// Topology returns the parked queue, and the levels as the other system declares them.
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
		q.DeliveryLimit, q.Overflow = nil, argument.RejectPublish // the arguments must be the same as the other system's
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: name, Kind: "topic"})
		t.Queues = append(t.Queues, q)
		t.Bindings = append(t.Bindings,
			topology.Binding{Exchange: name, Queue: name, RoutingKey: above + "1.#"},
			topology.Binding{Exchange: name, ToExchange: next, RoutingKey: above + "0.#"})
		above += "*."
	}
	return t
}

// Bindings returns the binding of the destination's target queue to the other system's delivery exchange. It matches
// the exact number of digits. The other system's own bindings begin with "#" and also deliver a message for "a.b" to
// "b". A queue that matches both bindings gets a message once.
func (s *Levels) Bindings(dest topology.Destination) []topology.Binding {
	return s.bindings(dest)
}

// Route returns the level's exchange and the routing key for delay, rounded up to seconds. With a tolerance it picks
// the delay between delay and delay+tolerance that needs the fewest hops. With NServiceBus the route includes the
// header foreign.HeaderNServiceBusDelay.
//
// It returns the same errors as Bucket.Route.
func (s *Levels) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	r, err := s.route(dest, delay, tolerance)
	if s.strategy == LayoutNServiceBus && r.Delay > 0 {
		r.Headers = map[string]any{foreign.HeaderNServiceBusDelay: int32(r.Delay / time.Second)}
	}
	return r, err
}
