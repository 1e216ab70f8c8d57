package declare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// look describes the situation in which a destination is checked.
type look struct {
	awaited bool // whether messages are waiting to be published after the check
	failed  int  // number of failed attempts in a row before this check
}

// destination makes sure that a destination exists and is bound.
func (c *Declarer) destination(ctx context.Context, conn *amqp.Connection, dest topology.Destination, l look) error {
	if err := c.cfg.Listed(dest); err != nil {
		return err
	}
	d := declaration{c: c, dest: dest, look: l, ch: &wire.Channel{Conn: conn}}
	defer d.ch.Close()
	if err := d.queues(ctx); err != nil {
		return err
	}
	began := time.Now()
	err := d.bind()
	switch {
	case err == nil:
		return nil
	case c.cfg.OnlyLook:
		return d.notBound(err)
	case wire.IsCode(err, amqp.NotFound) && d.lacksDelivery():
		if err := c.redeclare(ctx, conn, began); err != nil {
			return err
		}
		err = d.bind()
	}
	return err
}

type declaration struct {
	c     *Declarer
	dest  topology.Destination
	look  look
	ch    *wire.Channel
	made  bool // whether a queue was missing and has been declared
	lying int  // messages in the queue that was checked last, if it exists
}

// bind binds the destination. If the broker version requires it, bind also declares a second binding; see ownBindings.
func (d *declaration) bind() error {
	bindings := d.c.cfg.Strategy.Bindings(d.dest)
	version, _ := d.ch.Conn.Properties["version"].(string)
	if (d.look.awaited || d.made) && live.LateBindings(version) {
		for _, b := range bindings {
			b = d.c.own.of(d.ch.Conn, b, d.look.failed)
			d.c.own.keep(b)
			bindings = append(bindings, b)
		}
	}
	for _, b := range bindings {
		err := d.ch.Do(func(ch *amqp.Channel) error {
			return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, b.Arguments)
		})
		if err != nil {
			return fmt.Errorf("bind %s to %s: %w", b.Queue, b.Exchange, err)
		}
	}
	return nil
}

func (d *declaration) refuse(reason string, err error) error {
	return fmt.Errorf("%w: %w", &topology.DestinationError{Destination: d.dest, Reason: reason}, err)
}

// queues checks the queues that the destination needs, and creates the ones that are missing.
func (d *declaration) queues(ctx context.Context) error {
	if d.dest.ToExchange() {
		if err := d.targetExists(); err != nil {
			return err
		}
		route := d.dest.RouteQueue(d.c.cfg.Strategy.Prefix())
		if err := d.queue(ctx, route); err != nil || !d.made && d.lying == 0 || d.c.cfg.OnlyLook {
			return err
		}
		return d.forwardStuck(route.Name)
	}
	if d.dest.DeadLetter == "" {
		if d.foreign() || d.dest.ServerNamed() {
			return d.targetQueueExists()
		}
		d.dest = d.c.cfg.Configured(d.dest.Queue)
	}
	for _, q := range d.dest.Queues(d.c.cfg.QueueType) {
		if err := d.queue(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// foreign reports whether the strategy uses another system's delay queues. That system's endpoints and workers declare
// their own queues, and could not start if one of these queues existed with different arguments.
func (d *declaration) foreign() bool {
	return slices.ContainsFunc(d.c.cfg.Strategy.Bindings(d.dest), func(b topology.Binding) bool {
		_, ok := foreign.System(b.Exchange)
		return ok
	})
}

// targetQueueExists checks for a queue that another program declares.
func (d *declaration) targetQueueExists() error {
	err := d.ch.Do(func(ch *amqp.Channel) error { return queueExists(ch, d.dest.Queue) })
	switch {
	case wire.IsCode(err, amqp.NotFound) && !isDown(err) && d.dest.ServerNamed():
		return d.refuse("does not exist, or no longer exists: the broker deletes it with its last consumer or its connection", err)
	case wire.IsCode(err, amqp.NotFound) && !isDown(err):
		return d.refuse("does not exist; with another system's delay queues, that system's programs declare the queue: start one of them, or define the queue under queues and run rabbitdelay apply, or consume from it with this client", err)
	case err == nil, d.c.hidden(err):
		return nil
	}
	return fmt.Errorf("queue %s: %w", d.dest.Queue, err)
}

// NoExchange is the reason why a message cannot be sent to an exchange that does not exist.
const NoExchange = "does not exist; declare the exchange first (rabbitdelay apply, or Client.Apply)"

func (d *declaration) targetExists() error {
	err := d.ch.Do(func(ch *amqp.Channel) error { return exchangeExists(ch, d.dest.Exchange) })
	switch {
	case wire.IsCode(err, amqp.NotFound):
		return d.refuse(NoExchange, err)
	case d.c.hidden(err):
		return nil
	}
	return err
}

// hidden reports whether err means that a client that declares nothing was not allowed to check an object. Since
// RabbitMQ 4.3 the check requires a permission for the object that a producer might not have. The client then assumes
// that the object exists. If the object is the queue to which messages are delivered, binding it shows whether it
// exists.
func (c *Declarer) hidden(err error) bool {
	return c.cfg.OnlyLook && wire.IsCode(err, amqp.AccessRefused)
}

// queue checks whether a queue exists, and creates it if it is missing. An existing queue stays unchanged, whatever its
// arguments are.
func (d *declaration) queue(ctx context.Context, q topology.Queue) error {
	var seen amqp.Queue
	see := func(ch *amqp.Channel) (err error) {
		seen, err = ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		return err
	}
	err := d.ch.Do(see)
	d.lying = seen.Messages
	switch {
	case err == nil && !d.maybeUnfinished(seen), d.c.hidden(err):
		return nil
	case err == nil:
	case !wire.IsCode(err, amqp.NotFound), isDown(err):
		return fmt.Errorf("queue %s: %w", q.Name, err)
	case d.c.cfg.OnlyLook:
		return d.refuse(fmt.Sprintf("needs the queue %s, which does not exist and which this client is not allowed to declare (DeclareNothing); run rabbitdelay apply first", q.Name), err)
	}
	if q.Name == d.dest.DeadLetterQueue() && d.dest.Queue != "" {
		// This client consumes nothing from a stream, so a stream needs no dead-letter queue.
		other, err := live.OtherType(ctx, d.ch.Conn, topology.Queue{Name: d.dest.Queue, Type: d.c.cfg.QueueType})
		if err != nil || other == live.TypeStream {
			return err
		}
	}
	unlock, lockErr := d.creating(ctx, q.Name)
	if lockErr != nil {
		return lockErr
	}
	defer unlock()
	if err == nil || d.ch.Do(see) == nil {
		return nil
	}
	if d.dest.ToExchange() && !d.c.dests.addRoute(q.Name) {
		return &topology.DestinationError{Destination: d.dest, Reason: tooManyRoutes(d.c.cfg.MaxRouteQueues)}
	}
	err = d.ch.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Table())
		return err
	})
	d.made = true
	if wire.IsCode(err, amqp.PreconditionFailed) && d.ch.Do(see) == nil {
		return nil // another client created it in the meantime, such as a consumer with its own dead-letter queue
	}
	if err != nil {
		d.c.dests.mu.Lock()
		delete(d.c.dests.routes, q.Name)
		d.c.dests.mu.Unlock()
		return fmt.Errorf("declare queue %s: %w", q.Name, err)
	}
	d.c.log.Info("created queue", zap.String("queue", q.Name), zap.String("destination", d.dest.String()))
	return nil
}

// maybeUnfinished reports whether another client may still be creating the target queue. Until the queue is complete,
// the broker shows it as empty, but refuses messages for it. A delay queue tries a refused message again only after
// three minutes, and all messages behind it wait as well.
func (d *declaration) maybeUnfinished(q amqp.Queue) bool {
	return q.Messages == 0 && q.Consumers == 0 && d.look.awaited && !d.c.cfg.OnlyLook &&
		q.Name == d.dest.TargetQueue(d.c.cfg.Strategy.Prefix())
}

// mostSentOn limits how many messages one check rejects. Only the first messages can be without a TTL, and the messages
// behind them leave the queue by expiring.
const mostSentOn = 1000

// forwardStuck rejects the messages in a route queue, so that they are dead-lettered as if they had expired. Usually
// there are none. However, before RabbitMQ 4.3 a quorum queue accepts messages before its TTL is set, and a message
// that arrives before then would stay forever, with all later messages behind it.
func (d *declaration) forwardStuck(route string) error {
	err := d.ch.Do(func(ch *amqp.Channel) error {
		for range mostSentOn { // do not rely on the broker's count, which is 0 for a queue whose leader is busy
			m, ok, err := ch.Get(route, false)
			if err != nil || !ok {
				return err
			}
			if err := m.Reject(false); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || saysNothing(err) {
		return err
	}
	d.c.log.Debug("could not check a route queue for stuck messages", zap.String("queue", route), zap.Error(err))
	return nil
}

// isDown reports whether a queue was not found because its node is down, and not because the queue does not exist.
func isDown(err error) bool {
	ae, ok := errors.AsType[*amqp.Error](err)
	return ok && ae.Code == amqp.NotFound && !strings.Contains(ae.Reason, "no queue '")
}

// creating prevents this client's other destinations, and other clients, from creating the same queue concurrently.
// Many destinations may share a dead-letter queue, and RabbitMQ 3.10 has been seen to answer 541, which closes the
// connection, while another client was creating the same queue. Another client may hold the lock and hang, so creating
// proceeds without the lock after a few seconds.
func (d *declaration) creating(ctx context.Context, queue string) (unlock func(), err error) {
	ds := d.c.dests
	ds.mu.Lock()
	m := ds.creating[queue]
	if m == nil {
		m = wait.NewMutex()
		ds.creating[queue] = m
	}
	ds.mu.Unlock()
	patience, cancel := context.WithTimeout(ctx, creatingWait)
	defer cancel()
	own := m.Unlock
	if m.Lock(patience) != nil {
		own = func() {}
	}
	all, err := live.LockCreation(ctx, d.ch.Conn, d.c.cfg.Strategy.Prefix(), queue)
	switch {
	case errors.Is(err, live.ErrUnlocked):
		d.c.log.Debug("using a queue without the lock that prevents its concurrent creation", zap.String("queue", queue), zap.Error(err))
		return own, nil
	case err != nil:
		own()
		return nil, err
	}
	return func() { all(); own() }, nil
}

const creatingWait = 3 * time.Second

// lacksDelivery reports whether a delivery exchange has been deleted.
func (d *declaration) lacksDelivery() bool {
	return slices.ContainsFunc(d.c.cfg.Strategy.Bindings(d.dest), func(b topology.Binding) bool {
		return wire.IsCode(d.ch.Do(func(ch *amqp.Channel) error { return exchangeExists(ch, b.Exchange) }), amqp.NotFound)
	})
}

// notBound explains why a client that is not allowed to declare anything could not bind. Such a client declares the
// binding again, because AMQP has no request that checks for a binding.
func (d *declaration) notBound(err error) error {
	ae, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return err
	}
	b := d.c.cfg.Strategy.Bindings(d.dest)[0]
	queue, exchange := b.Queue, b.Exchange
	switch {
	case ae.Code == amqp.AccessRefused:
		lacks := fmt.Sprintf("write to the queue %s", queue)
		if strings.Contains(ae.Reason, "read access") || strings.Contains(ae.Reason, "to topic") {
			lacks = fmt.Sprintf("read from the exchange %s", exchange)
		}
		return d.refuse(fmt.Sprintf("cannot be checked: this client declares nothing (DeclareNothing), and its user lacks the permission to %s, which checking the binding needs; grant it (docs/permissions.md), and run rabbitdelay apply with the destination in the file", lacks), err)
	case ae.Code == amqp.NotFound && strings.Contains(ae.Reason, "no "):
		return d.refuse(fmt.Sprintf("needs the queue %s and the exchange %s; one of them does not exist, and this client is not allowed to declare it (DeclareNothing); run rabbitdelay apply first", queue, exchange), err)
	}
	return err
}

func tooManyRoutes(limit int) string {
	return fmt.Sprintf("would need one more route queue than the %d that this client may create (Config.MaxRouteQueues): each routing key needs its own route queue, which is never deleted. "+
		"For many keys, delay the messages to one queue instead: to a queue that is bound to the exchange by a pattern, or to one whose consumer publishes them to the exchange. Or raise the limit", limit)
}

// Rehearse checks a destination on the broker and creates nothing. The parameter made is the number of route queues
// that would have been created so far, and route reports whether another one would be.
func (c *Declarer) Rehearse(ctx context.Context, ch *wire.Channel, dest topology.Destination, made int) (route bool, err error) {
	if err := c.cfg.Listed(dest); err != nil {
		return false, err
	}
	d := declaration{c: c, dest: dest, ch: ch}
	switch {
	case c.cfg.OnlyLook:
		return false, d.queues(ctx)
	case !dest.ToExchange() && d.foreign():
		return false, d.targetQueueExists()
	case !dest.ToExchange():
		return false, nil
	}
	if err := d.targetExists(); err != nil {
		return false, err
	}
	err = ch.Do(func(ch *amqp.Channel) error { return queueExists(ch, dest.RouteQueue(c.cfg.Strategy.Prefix()).Name) })
	switch {
	case !wire.IsCode(err, amqp.NotFound) || isDown(err):
		return false, err
	case made >= c.cfg.MaxRouteQueues:
		return false, &topology.DestinationError{Destination: dest, Reason: tooManyRoutes(c.cfg.MaxRouteQueues)}
	}
	return true, nil
}
