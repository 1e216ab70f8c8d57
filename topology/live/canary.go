package live

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// ErrInstantsIgnored is wrapped by every *InstantsIgnoredError.
var ErrInstantsIgnored = errors.New("the broker does not delay by an instant in a header")

// InstantsIgnoredError reports a broker that hands on at once messages that carry
// topology.HeaderInstant with an instant to come.
type InstantsIgnoredError struct {
	Broker string // product and version, as far as it gave them
	Queue  string // in which the message should have waited
}

func (e *InstantsIgnoredError) Error() string {
	return fmt.Sprintf("%s ignores the header %s in the queue %s: a message with an instant to come was handed on at once; "+
		"that takes RabbitMQ 4.4 or later on all nodes, and a quorum queue; use the strategy bucket, which needs neither",
		e.Broker, topology.HeaderInstant, e.Queue)
}

// Unwrap makes errors.Is(err, ErrInstantsIgnored) true.
func (e *InstantsIgnoredError) Unwrap() error { return ErrInstantsIgnored }

// Clock is how much the broker's clock is ahead of this process's. It is negative
// when it is behind. The true difference lies between Low and High.
type Clock struct{ Low, High time.Duration }

// ClockError means that the clocks of a broker and this process are too far apart
// for delays by an instant.
type ClockError struct {
	Clock

	Queue string // on whose leader's node the clock was read
}

func (e *ClockError) Error() string {
	by, what := e.Low, "behind"
	if e.High < 0 {
		by, what = -e.High, "ahead of"
	}
	// Not what was measured, which is another figure each time.
	return fmt.Sprintf("this machine's clock is at least %v %s the broker's (read in the queue %s), and at most %v is tolerated, because an instant means the same to both; "+
		"set the clocks (timedatectl set-ntp true), or use the strategy bucket",
		by.Truncate(MaxClockDifference), what, e.Queue, MaxClockDifference)
}

const (
	// MaxClockDifference is how far the clocks of the broker and this process may be
	// apart for delays by an instant.
	MaxClockDifference = 10 * time.Second

	canaryWait    = 200 * time.Millisecond // that a message is to wait
	canaryEvery   = 20 * time.Millisecond  // a message that does not wait is sent beside it
	canaryTimeout = 10 * time.Second
	// canarySettle is until other nodes of a cluster, too, route by a new binding.
	canarySettle = 50 * time.Millisecond
	// canaryExpires deletes what a process leaves behind that ends meanwhile, with the
	// messages that come there yet, which else would be parked.
	canaryExpires = time.Minute
)

// errNoCanary is why a canary has no verdict.
var errNoCanary = fmt.Errorf("messages that should prove that the broker delays by an instant did not come back within %v, as they would not while an alarm blocks publishers", canaryTimeout)

// Prove finds out whether a broker delays by an instant in each of the queues that
// ways leads through, all at once, by messages to a temporary queue below
// naming.CanaryQueue(prefix). ways is what amqpx.Canary has.
//
// A message with an instant to come is published, and behind it messages without,
// all through the same queue. Where the first comes out first, it was not delayed,
// whatever any clock says and however slow the broker is; where the others come first,
// it waited. A client's clock that is behind may make an instant to come one of the past:
// it is tried again with one that is to come by the broker's clock, which the x-death of
// the others tells. The queue is not exclusive, because what comes after the client's end
// would be parked. It takes some 300 ms, and 1.3 s where the clocks disagree.
//
// The errors are *InstantsIgnoredError, *ClockError, and others when there is no
// verdict. The clock is that of the node that is furthest ahead. Without routes there is
// nothing to prove.
func (b Broker) Prove(ctx context.Context, prefix string, ways func(queue string) ([]topology.Binding, []topology.Route)) (Clock, error) {
	queue := naming.CanaryQueue(prefix) + rand.Text()
	bindings, routes := ways(queue)
	if len(routes) == 0 {
		return Clock{}, nil
	}
	return b.prove(ctx, routes, func(ch *amqp.Channel) (string, error) {
		if err := declareCanary(ch, queue, nil); err != nil {
			return "", err
		}
		for _, x := range bindings {
			if err := ch.QueueBind(queue, x.RoutingKey, x.Exchange, false, x.Arguments); err != nil {
				return "", fmt.Errorf("bind %s to %s: %w", queue, x.Exchange, err)
			}
		}
		return queue, nil
	})
}

// ProbeInstants is Prove with a temporary quorum queue of its own, on a connection
// that dial makes, for callers that have declared nothing yet. It returns nil where new
// quorum queues delay by an instant, and an *InstantsIgnoredError where they do not.
func ProbeInstants(ctx context.Context, prefix string, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("probing for delays by an instant: %w", err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // the answer is there
	defer context.AfterFunc(ctx, func() { _ = conn.CloseDeadline(time.Now()) })()
	queue := naming.CanaryQueue(prefix) + rand.Text()
	holding := queue + ".held"
	routes := []topology.Route{{RoutingKey: holding, Queue: holding, InstantHeader: topology.HeaderInstant, Mandatory: true}}
	_, err = Broker{Conn: conn}.prove(ctx, routes, func(ch *amqp.Channel) (string, error) {
		if err := declareCanary(ch, queue, nil); err != nil {
			return "", err
		}
		return queue, declareCanary(ch, holding, amqp.Table{
			argument.QueueType: string(topology.Quorum), argument.MessageTTL: int64(0),
			argument.DeadLetterExchange: "", argument.DeadLetterRoutingKey: queue,
		})
	})
	if _, clock := errors.AsType[*ClockError](err); clock {
		return nil // it delays; the client says what is wrong with the clock
	}
	if err == nil {
		err = (&session{conn: conn}).do(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(holding, false, false, false)
			return err
		})
	}
	return err
}

// declareCanary declares a temporary queue, classic unless its arguments say so.
func declareCanary(ch *amqp.Channel, name string, args amqp.Table) error {
	if args == nil {
		args = amqp.Table{argument.QueueType: string(topology.Classic)}
	}
	args[argument.Expires] = canaryExpires.Milliseconds()
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		return fmt.Errorf("declare %s, which the proof that the broker delays needs (with the rights to configure, write to and read it): %w", name, err)
	}
	return nil
}

// prove runs a canary through routes to a queue that declare makes, and deletes
// the queue when nothing is on its way there any more.
func (b Broker) prove(ctx context.Context, routes []topology.Route, declare func(ch *amqp.Channel) (string, error)) (Clock, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, canaryTimeout, errNoCanary)
	defer cancel()
	c := newCanary(b.Conn, routes)
	s := &session{conn: b.Conn}
	defer s.close()
	err := s.do(ctx, func(ch *amqp.Channel) error {
		queue, err := declare(ch)
		if err != nil {
			return err
		}
		if err := c.listen(ch, queue); err != nil {
			return err
		}
		verdict := c.run(ctx)
		if verdict == nil || errors.Is(verdict, ErrInstantsIgnored) {
			if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
				return err
			}
		}
		return verdict
	})
	if err != nil {
		return Clock{}, err
	}
	return c.clock()
}
