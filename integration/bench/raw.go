package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The baselines of publish and consume: what a careful program does with
// amqp091-go itself, into and from a plain queue.

// dialRaw has the settings of amqpx's connections.
func dialRaw(url string) (*amqp.Connection, error) {
	return amqp.DialConfig(url, amqp.Config{Heartbeat: 10 * time.Second, Locale: "en_US"})
}

// declarePlain makes a durable queue without anything else to it.
func declarePlain(conn *amqp.Connection, name string, t topology.QueueType) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": string(t)})
	return err
}

var errNotConfirmed = errors.New("the broker did not confirm a message")

// rawPublisher publishes on one channel in confirm mode, into any one of the
// queues.
type rawPublisher struct {
	ch     *amqp.Channel
	queues []string
	size   int
}

func newRawPublisher(conn *amqp.Connection, size int, queues ...string) (*rawPublisher, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	return &rawPublisher{ch: ch, queues: queues, size: size}, nil
}

func (p *rawPublisher) publish(ctx context.Context, number int) (*amqp.DeferredConfirmation, error) {
	queue := p.queues[rand.N(len(p.queues))]
	return p.ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Body: body(p.size, uint64(number)),
	})
}

// pipelined publishes n messages from one goroutine, window of them
// unconfirmed at once.
func (p *rawPublisher) pipelined(ctx context.Context, n, window int, advance func(int)) error {
	ring := make([]*amqp.DeferredConfirmation, window)
	wait := func(i int) error {
		c := ring[i%window]
		if c == nil {
			return nil
		}
		ring[i%window] = nil
		if acked, err := c.WaitContext(ctx); err != nil || !acked {
			return errors.Join(errNotConfirmed, err)
		}
		return nil
	}
	for i := range n {
		if err := wait(i); err != nil {
			return err
		}
		c, err := p.publish(ctx, i)
		if err != nil {
			return err
		}
		ring[i%window] = c
		if i%1000 == 999 {
			advance(1000)
		}
	}
	for i := range window {
		if err := wait(i); err != nil {
			return err
		}
	}
	return nil
}

// shared publishes n messages from many goroutines, each of which waits for its
// own confirm.
func (p *rawPublisher) shared(ctx context.Context, n, goroutines int, advance func(int)) error {
	return parallel(n, goroutines, advance, func(i int) error {
		c, err := p.publish(ctx, i)
		if err != nil {
			return err
		}
		if acked, err := c.WaitContext(ctx); err != nil || !acked {
			return errors.Join(errNotConfirmed, err)
		}
		return nil
	})
}

// parallel calls f with the numbers below n from many goroutines.
func parallel(n, goroutines int, advance func(int), f func(i int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		group.Go(func() {
			for errs[g] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[g] = f(i)
				if i%1000 == 999 {
					advance(1000)
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// rawConsume takes n messages from a queue with so many goroutines, and
// acknowledges each. It calls handled for each message.
func rawConsume(ctx context.Context, conn *amqp.Connection, queue string, n, goroutines, prefetch int, handled func() (last bool)) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	errs := make([]error, goroutines)
	var group sync.WaitGroup
	for g := range goroutines {
		group.Go(func() {
			for {
				select {
				case d, ok := <-deliveries:
					if !ok {
						errs[g] = fmt.Errorf("queue %s: the channel ended before %d messages came", queue, n)
						return
					}
					if errs[g] = d.Ack(false); errs[g] != nil {
						return
					}
					if handled() {
						close(done)
						return
					}
				case <-done:
					return
				case <-ctx.Done():
					errs[g] = ctx.Err()
					return
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// joined keeps an error of the work before one of the cleaning up.
func joined(err, cleaning error) error {
	if cleaning == nil {
		return err
	}
	return errors.Join(err, fmt.Errorf("cleaning up: %w", cleaning))
}
