package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const (
	batchSize      = 5000    // size of SendBatch batches in cases that do not measure SendBatch itself
	maxStream      = 200_000 // messages in one SendBatch, to limit the memory
	sendGoroutines = 64
	minBody        = 16 // the size of a number and a due time, which are in every body
)

// body returns a payload that starts with the given number, so that all payloads differ.
func body(size, number int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint64(b, uint64(number))
	return b
}

// delayFor returns the delay of the i-th message.
type delayFor func(i int) time.Duration

// span is a range of delays that includes both ends.
type span struct{ lo, hi time.Duration }

func (s span) String() string {
	return fmt.Sprintf("delays %.0f-%.0f s", s.lo.Seconds(), s.hi.Seconds())
}

// at returns the delay of the i-th message, in whole milliseconds. The delays are evenly distributed over the span and
// the same in each run.
func (s span) at(i int) time.Duration {
	var p rand.PCG
	p.Seed(27, uint64(i))
	return s.lo + time.Duration(p.Uint64()%uint64((s.hi-s.lo).Milliseconds()+1))*time.Millisecond
}

// sendBatch sends n messages with one SendBatch.
func sendBatch(n int, delay delayFor) work {
	return func(ctx context.Context, t *turn) error {
		return t.measure(n, func() error { return t.sendBatches(ctx, n, n, delay) })
	}
}

// sendBatches sends n messages with SendBatch, in batches of the given size. SendBatch waits for the last confirms of
// each batch, so a continuous stream needs a single batch.
func (t *turn) sendBatches(ctx context.Context, n, batch int, delay delayFor) error {
	msgs := make([]amqpx.Message, min(n, batch, maxStream))
	for sent := 0; sent < n; sent += len(msgs) {
		msgs = msgs[:min(len(msgs), n-sent)]
		for i := range msgs {
			msgs[i] = amqpx.Message{Queue: t.c.queue, Delay: delay(sent + i), Body: body(t.o.Body, sent+i)}
		}
		if err := t.c.SendBatch(ctx, msgs); err != nil {
			return err
		}
	}
	return nil
}

// send sends n messages with Send from several goroutines.
func send(n int, delay delayFor) work {
	return func(ctx context.Context, t *turn) error {
		return t.measure(n, func() error {
			return parallel(n, func(i int) error {
				return t.c.Send(ctx, amqpx.Message{Queue: t.c.queue, Delay: delay(i), Body: body(t.o.Body, i)})
			})
		})
	}
}

// parallel calls f with the numbers below n from several goroutines.
func parallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var all errgroup.Group
	for range sendGoroutines {
		all.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// rawPipelined publishes n messages from one goroutine. It allows the same number of unconfirmed messages as amqpx does
// by default.
func rawPipelined(n int, to targets) work {
	return rawly(n, to, func(ctx context.Context, publish rawPublish) error {
		ring := make([]*amqp.DeferredConfirmation, 1024)
		for i := range n + len(ring) {
			at := i % len(ring)
			if err := confirmed(ctx, ring[at]); err != nil {
				return err
			}
			ring[at] = nil
			if i < n {
				var err error
				if ring[at], err = publish(i); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// rawShared publishes n messages from several goroutines, each of which waits for the confirm of every message.
func rawShared(n int, to targets) work {
	return rawly(n, to, func(ctx context.Context, publish rawPublish) error {
		return parallel(n, func(i int) error {
			c, err := publish(i)
			if err != nil {
				return err
			}
			return confirmed(ctx, c)
		})
	})
}

// rawPublish publishes the i-th message.
type rawPublish func(i int) (*amqp.DeferredConfirmation, error)

// target is the address of a published message and the headers of its route.
type target struct {
	exchange, key string
	mandatory     bool
	headers       amqp.Table
}

// targets returns the targets of a client's messages by their numbers.
type targets func(c *client) (func(i int) (target, error), error)

// plainQueues chooses randomly among n queues that client.plain declares.
func plainQueues(n int) targets {
	return func(c *client) (func(i int) (target, error), error) {
		names, err := c.plain(n)
		return func(int) (target, error) { return target{key: names[rand.N(len(names))]}, nil }, err
	}
}

// sameRoutes uses the exchanges, keys and headers by which amqpx delays messages, so that the broker's work is the
// same.
func sameRoutes(delay delayFor) targets {
	return func(c *client) (func(i int) (target, error), error) {
		to := topology.Destination{Queue: c.queue}
		return func(i int) (target, error) {
			d := delay(i)
			r, err := c.routes.Route(to, d, 0)
			return target{r.Exchange, r.RoutingKey, r.Mandatory, amqp.Table{amqpx.HeaderDue: time.Now().Add(d).UnixMilli()}}, err
		}, nil
	}
}

// rawly publishes with amqp091-go alone on a channel in confirm mode, as a program does that must not lose messages.
func rawly(n int, to targets, do func(ctx context.Context, publish rawPublish) error) work {
	return func(ctx context.Context, t *turn) error {
		next, err := to(t.c)
		if err != nil {
			return err
		}
		ch, err := t.c.conn.Channel()
		if err != nil {
			return err
		}
		defer ch.Close()
		if err := ch.Confirm(false); err != nil {
			return err
		}
		return t.measure(n, func() error {
			return do(ctx, func(i int) (*amqp.DeferredConfirmation, error) {
				at, err := next(i)
				if err != nil {
					return nil, err
				}
				return ch.PublishWithDeferredConfirmWithContext(ctx, at.exchange, at.key, at.mandatory, false, amqp.Publishing{
					DeliveryMode: amqp.Persistent, Headers: at.headers, Body: body(t.o.Body, i),
				})
			})
		})
	}
}

// confirmed waits for a confirm. It returns immediately if c is nil.
func confirmed(ctx context.Context, c *amqp.DeferredConfirmation) error {
	if c == nil {
		return nil
	}
	if acked, err := c.WaitContext(ctx); err != nil || !acked {
		return errors.Join(errors.New("the broker did not confirm a message"), err)
	}
	return nil
}
