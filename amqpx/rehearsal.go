package amqpx

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Rehearsal says what a client would refuse, and changes nothing on the broker: it asks
// for exchanges and queues by passive declarations. Whether a user may publish to an
// exchange, only publishing tells. It is safe for concurrent use.
type Rehearsal struct {
	c  *Client // without connections
	on string  // the broker

	mu     sync.Mutex
	ch     *oneChannel
	asked  map[destKey]error // nil: can be used
	routes int               // queues that would be created
}

// Rehearse takes the configuration that Open would, and a connection. It fails with what
// is wrong in cfg.
func Rehearse(conn *amqp.Connection, cfg Config) (*Rehearsal, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	strategy, err := cfg.strategy()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, strategy: strategy}
	return &Rehearsal{c: c, on: brokerVersion(conn), ch: &oneChannel{conn: conn}, asked: map[destKey]error{}}, nil
}

// PassOn gives the error of Client.PassOn, as far as it can be known before anything is
// declared and published.
func (r *Rehearsal) PassOn(_ context.Context, raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) error {
	m := passing(raw, to, at, offset)
	p, err := r.c.prepare(&m, nil, time.Now())
	if err != nil {
		return err
	}
	if p.first.Hops > 0 {
		if err := priorityProblem(r.on, r.c.strategy, p.pub.Priority); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	err, known := r.asked[keyOf(p.dest)]
	if !known {
		err = r.ask(p.dest)
		r.asked[keyOf(p.dest)] = err
	}
	return err
}

// ask asks the broker for a destination, as declareDestination does.
func (r *Rehearsal) ask(dest topology.Destination) error {
	if err := r.c.listed(dest); err != nil {
		return err
	}
	d := declaration{c: r.c, dest: dest, ch: r.ch}
	switch {
	case r.c.cfg.Declare == DeclareNothing:
		return d.queues(context.Background()) // only looks
	case !dest.ToExchange() && d.foreign():
		return d.targetQueueExists()
	case !dest.ToExchange():
		return nil
	}
	if err := d.targetExists(); err != nil {
		return err
	}
	err := r.ch.do(func(ch *amqp.Channel) error {
		return queueExists(ch, dest.RouteQueue(r.c.strategy.Prefix()).Name)
	})
	if !isCode(err, amqp.NotFound) || isDown(err) {
		return err
	}
	if r.routes >= r.c.cfg.MaxRouteQueues {
		return &topology.DestinationError{Destination: dest, Reason: tooManyRoutes(r.c.cfg.MaxRouteQueues)}
	}
	r.routes++
	return nil
}
