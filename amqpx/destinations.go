package amqpx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// destinations remembers which destinations exist and are bound on the current
// connection. The mandatory flag tells only about a message's first hop, so the
// last one is looked after here, before the first message is sent that way.
type destinations struct {
	c *Client

	mu       sync.Mutex
	known    map[destKey]*destination
	creating map[string]*sync.Mutex // by queue
}

type destKey struct{ queue, exchange, key string }

type destination struct {
	mu       ctxMutex  // held while it is being declared
	gen      uint64    // the session in which it was
	at       time.Time // when it was
	checking bool      // somebody looks at it again
}

func newDestinations(c *Client) *destinations {
	return &destinations{c: c, known: map[destKey]*destination{}, creating: map[string]*sync.Mutex{}}
}

func keyOf(d topology.Destination) destKey { return destKey{d.Queue, d.Exchange, d.RoutingKey} }

func (ds *destinations) entry(k destKey) *destination {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	d := ds.known[k]
	if d == nil {
		d = &destination{mu: newCtxMutex()}
		ds.known[k] = d
	}
	return d
}

func (ds *destinations) forgetAll() {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	clear(ds.known)
}

// ensure declares and binds the destination on first use in a session.
func (ds *destinations) ensure(ctx context.Context, sess *session, dest topology.Destination) error {
	d := ds.entry(keyOf(dest))
	if err := d.mu.lock(ctx); err != nil {
		return err
	}
	defer d.mu.unlock()
	if d.gen == sess.gen {
		if !d.checking && time.Since(d.at) > ds.c.cfg.RecheckInterval {
			d.checking = ds.c.background(func() { ds.recheck(sess, dest, d) })
		}
		return nil
	}
	err := within(ctx, func() error { return ds.c.declareDestination(sess.conn, dest) })
	if err == nil {
		d.gen, d.at = sess.gen, time.Now()
	}
	return err
}

// recheck declares and binds a destination again in case somebody has deleted
// it, while messages are sent to it. Where that fails the next send does it, and
// has the error.
func (ds *destinations) recheck(sess *session, dest topology.Destination, d *destination) {
	err := ds.c.declareDestination(sess.conn, dest)
	_ = d.mu.lock(context.Background()) // nobody holds it for longer than a declaration
	defer d.mu.unlock()
	d.checking, d.at = false, time.Now()
	if err != nil && d.gen == sess.gen {
		d.gen = 0 // sessions count from 1
		ds.c.log.Warn("destination cannot be declared again", zap.String("destination", destinationName(dest)), zap.Error(err))
	}
}

// declare declares and binds the destination for a consumer. Like ensure it does
// so alone: a RabbitMQ 4.0 that is just making a binding for one connection tells
// another that it is there, and does not route by it yet.
func (ds *destinations) declare(ctx context.Context, conn *amqp.Connection, dest topology.Destination) error {
	d := ds.entry(keyOf(dest))
	if err := d.mu.lock(ctx); err != nil {
		return err
	}
	defer d.mu.unlock()
	return ds.c.declareDestination(conn, dest)
}

// creatingOf is held while a queue is looked for and created. A dead-letter queue
// may belong to many destinations, and a RabbitMQ 3.10 has been seen to answer
// 541, which ends the connection, while another was creating the same queue.
func (ds *destinations) creatingOf(queue string) *sync.Mutex {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	m := ds.creating[queue]
	if m == nil {
		m = &sync.Mutex{}
		ds.creating[queue] = m
	}
	return m
}

// declareDestination makes sure that the destination exists and is bound.
func (c *Client) declareDestination(conn *amqp.Connection, dest topology.Destination) error {
	if dest.ToExchange() {
		if err := c.targetExists(conn, dest); err != nil {
			return err
		}
		if err := c.ensureQueue(conn, dest, dest.RouteQueue(c.cfg.Prefix)); err != nil {
			return err
		}
	} else {
		if dest.DeadLetter == "" {
			dest = c.destination(dest.Queue)
		}
		for _, q := range dest.Queues(c.cfg.QueueType) {
			if err := c.ensureQueue(conn, dest, q); err != nil {
				return err
			}
		}
	}
	if c.cfg.Declare == DeclareNothing {
		return nil
	}
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	for _, b := range c.strategy.Bindings(dest) {
		if err := ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, b.Arguments); err != nil {
			return fmt.Errorf("bind %s to %s: %w", b.Queue, b.Exchange, err)
		}
	}
	return nil
}

// destination gives a queue its configured retry policy and dead-letter queue.
func (c *Client) destination(queue string) topology.Destination {
	for _, d := range c.cfg.Destinations {
		if d.Queue == queue {
			return d
		}
	}
	return topology.Destination{Queue: queue}
}

func (c *Client) targetExists(conn *amqp.Connection, dest topology.Destination) error {
	err := exchangeExists(conn, dest.Exchange)
	switch {
	case isCode(err, amqp.NotFound):
		return fmt.Errorf("%w: %w", &topology.DestinationError{Destination: dest, Reason: "does not exist; declare the exchange first (rabbitdelay apply, or Client.Apply)"}, err)
	case c.hidden(err):
		return nil
	}
	return err
}

// hidden tells whether an object could not be looked at by a client that only
// looks. Since RabbitMQ 4.3 that takes some right to it, which a producer need
// not have: it takes for granted that the object is there. If it is not, the
// message is parked.
func (c *Client) hidden(err error) bool {
	return c.cfg.Declare == DeclareNothing && isCode(err, amqp.AccessRefused)
}

// exchangeExists asks for an exchange of any type.
func exchangeExists(conn *amqp.Connection, name string) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	return ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil)
}

// ensureQueue leaves an existing queue as it is, whatever its arguments, and
// creates one that is missing.
func (c *Client) ensureQueue(conn *amqp.Connection, dest topology.Destination, q topology.Queue) error {
	creating := c.dests.creatingOf(q.Name)
	creating.Lock()
	defer creating.Unlock()
	err := queueExists(conn, q.Name)
	if err == nil || c.hidden(err) {
		return nil
	}
	if !isCode(err, amqp.NotFound) {
		return fmt.Errorf("queue %s: %w", q.Name, err)
	}
	if c.cfg.Declare == DeclareNothing {
		reason := fmt.Sprintf("needs the queue %s, which does not exist, and this client may not declare (DeclareNothing); run rabbitdelay apply first", q.Name)
		return fmt.Errorf("%w: %w", &topology.DestinationError{Destination: dest, Reason: reason}, err)
	}
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	_, err = ch.QueueDeclare(q.Name, true, false, false, false, q.Table())
	if isCode(err, amqp.PreconditionFailed) && queueExists(conn, q.Name) == nil {
		return nil // another created it in the meantime, such as a consumer with its own dead-letter queue
	}
	if err != nil {
		return fmt.Errorf("declare queue %s: %w", q.Name, err)
	}
	return nil
}

func queueExists(conn *amqp.Connection, name string) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	_, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
	return err
}

func isCode(err error, code int) bool {
	ae, ok := errors.AsType[*amqp.Error](err)
	return ok && ae.Code == code
}
