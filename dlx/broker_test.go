package dlx_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// broker is an in-memory RabbitMQ on which every message that reaches a final queue is consumed immediately.
type broker struct {
	srv  *amqptest.Server
	conn *amqp.Connection
	ch   *amqp.Channel

	closed chan *amqp.Error

	mu   sync.Mutex
	sent []outcome // by message id
}

// outcome is what happened to a message.
type outcome struct {
	Returned bool // the message was returned to its mandatory publisher
	Rests    []rest
	at       time.Time // when it was published
}

// rest describes where one copy of a message arrived.
type rest struct {
	Queue      string
	RoutingKey string        // the key with which the copy arrived
	After      time.Duration // since it was published
	Visited    []string      // the queues in which the copy expired, in order and with repetitions
}

// onBroker runs f in a separate bubble with a broker on which the topology is declared. The caller must report the
// result outside of the bubble, because a *rapid.T must fail where it was created. rapid.Check itself cannot run in a
// bubble either: it limits the time for all checks, and in a bubble each check may take a year.
func onBroker(t *testing.T, top topology.Topology, f func(b *broker) error) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{srv: amqptest.NewServer(amqptest.Options{Version: "4.4.0"})}
		defer b.srv.Close()
		if err = b.connect(); err != nil {
			return
		}
		defer b.conn.Close()
		if err = b.declare(top); err == nil {
			err = f(b)
		}
	})
	return err
}

func (b *broker) connect() (err error) {
	if b.conn, err = b.srv.Connect(); err != nil {
		return err
	}
	if b.ch, err = b.conn.Channel(); err != nil {
		return err
	}
	b.closed = b.ch.NotifyClose(make(chan *amqp.Error, 1))
	returned := b.ch.NotifyReturn(make(chan amqp.Return))
	go func() {
		for r := range returned {
			b.note(r.MessageId, func(o *outcome) { o.Returned = true })
		}
	}()
	return nil
}

// declare declares a topology, and consumes from the queues without a TTL. It waits only for the last answer.
func (b *broker) declare(top topology.Topology) error {
	err := b.declareAll(top)
	if err == nil {
		err = b.ch.Qos(0, 0, false)
	}
	if errors.Is(err, amqp.ErrClosed) {
		return <-b.closed // the broker's reason for closing the channel
	}
	return err
}

func (b *broker) declareAll(top topology.Topology) error {
	for _, e := range top.Exchanges {
		if err := b.ch.ExchangeDeclare(e.Name, e.Kind, true, false, e.Internal, true, e.Table()); err != nil {
			return err
		}
	}
	for _, q := range top.Queues {
		_, err := b.ch.QueueDeclare(q.Name, true, false, false, true, q.Table())
		if err == nil && q.MessageTTL == nil {
			err = b.consume(q.Name)
		}
		if err != nil {
			return err
		}
	}
	for _, x := range top.Bindings {
		var err error
		if x.ToExchange != "" {
			err = b.ch.ExchangeBind(x.ToExchange, x.RoutingKey, x.Exchange, true, x.Arguments)
		} else {
			err = b.ch.QueueBind(x.Queue, x.RoutingKey, x.Exchange, true, x.Arguments)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *broker) consume(queue string) error {
	in, err := b.ch.Consume(queue, queue, true, false, false, true, nil)
	if err != nil {
		return err
	}
	go func() {
		for d := range in {
			b.note(d.MessageId, func(o *outcome) {
				o.Rests = append(o.Rests, rest{queue, d.RoutingKey, time.Since(o.at), visited(d)})
			})
		}
	}()
	return nil
}

func (b *broker) note(id string, what func(*outcome)) {
	i, err := strconv.Atoi(id)
	if err != nil {
		panic(err) // the test has not sent a message with this id
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	what(&b.sent[i])
}

// visited returns the queues in x-death in the order in which the message died in them.
func visited(d amqp.Delivery) (queues []string) {
	deaths, _ := d.Headers["x-death"].([]any)
	for _, x := range deaths {
		death, _ := x.(amqp.Table)
		name, _ := death["queue"].(string)
		times, _ := death["count"].(int64)
		queues = append(queues, slices.Repeat([]string{name}, int(times))...)
	}
	slices.Reverse(queues)
	return queues
}

// carry publishes a message for each route at the same time, and returns the outcomes. It fails unless each message is
// returned or has arrived exactly once when its delay is over, and no queue contains a message after the longest delay.
// It checks this after each of the delays and not only at the end, because a broker retries a stuck message again and
// again, and a year of retries would take long to simulate.
func (b *broker) carry(routes ...topology.Route) ([]outcome, error) {
	first, began := len(b.sent), time.Now()
	b.mu.Lock()
	b.sent = append(b.sent, slices.Repeat([]outcome{{at: began}}, len(routes))...)
	b.mu.Unlock()
	delays := map[time.Duration]bool{}
	for i, r := range routes {
		m := amqp.Publishing{MessageId: strconv.Itoa(first + i), Headers: r.Headers}
		if r.InstantHeader != "" {
			m.Headers = amqp.Table{r.InstantHeader: began.Add(r.Delay).UnixMilli()}
		}
		if err := b.ch.Publish(r.Exchange, r.RoutingKey, true, false, m); err != nil {
			return nil, err
		}
		delays[r.Delay] = true
	}
	for _, passed := range slices.Sorted(maps.Keys(delays)) {
		<-time.After(time.Until(began.Add(passed)))
		synctest.Wait()
		if err := b.settled(first, routes, passed); err != nil {
			return nil, err
		}
	}
	return b.sent[first:], b.left()
}

// settled returns an error about a message whose delay has passed and that was neither returned nor has arrived once.
func (b *broker) settled(first int, routes []topology.Route, passed time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, o := range b.sent[first:] {
		if routes[i].Delay <= passed && !o.settled() {
			return fmt.Errorf("%+v: after %v: got %+v, want the message to be returned or to arrive once", routes[i], passed, o)
		}
	}
	return nil
}

func (o outcome) settled() bool {
	if o.Returned {
		return len(o.Rests) == 0
	}
	return len(o.Rests) == 1
}

// left returns an error about a message that is still in a queue.
func (b *broker) left() error {
	for _, name := range b.srv.Queues() {
		if q, _ := b.srv.Queue(name); q.Ready+q.DeadLetters+q.Delayed > 0 {
			return fmt.Errorf("after the longest delay, %s contains the messages %+v and %d that it cannot route, want none", name, q.Messages, q.DeadLetters)
		}
	}
	return nil
}
