package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// dialer opens a connection to a broker.
type dialer func() (*amqp.Connection, error)

func dialing(url string) dialer { return func() (*amqp.Connection, error) { return amqp.Dial(url) } }

// plain sends and receives messages with the client of RabbitMQ's team alone. How messages are delayed is up to delays.
type plain struct {
	dial   dialer
	conn   *amqp.Connection // the connection that publish uses
	queue  string
	delays delays

	mu      sync.Mutex // guards publish and delays, because a channel's frames must not mix
	publish *amqp.Channel
}

// delays is a way to delay messages.
type delays interface {
	// declare declares what must exist before the first message is sent to the queue.
	declare(ch *amqp.Channel, queue string) error
	// address returns where a message with the given delay is published, and its headers.
	address(ch *amqp.Channel, delay time.Duration) (exchange, key string, headers amqp.Table, err error)
	// remove deletes what declare and address have declared.
	remove(ch *amqp.Channel) error
}

func openPlain(ctx context.Context, dial dialer, queue string, how delays) (_ system, err error) {
	d := &plain{dial: dial, queue: queue, delays: how}
	if d.conn, err = dial(); err != nil {
		return nil, err
	}
	if err := d.declare(); err != nil {
		return nil, errors.Join(err, d.close(ctx))
	}
	return d, nil
}

func (d *plain) declare() (err error) {
	if d.publish, err = d.conn.Channel(); err != nil {
		return err
	}
	if err := d.publish.Confirm(false); err != nil {
		return err
	}
	if _, err := d.publish.QueueDeclare(d.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return err
	}
	return d.delays.declare(d.publish, d.queue)
}

func (d *plain) send(ctx context.Context, t task) (*amqp.DeferredConfirmation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	exchange, key, headers, err := d.delays.address(d.publish, max(0, time.Until(t.due)))
	if err != nil {
		return nil, err
	}
	msg := amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: headers, Body: t.payload()}
	return d.publish.PublishWithDeferredConfirmWithContext(ctx, exchange, key, false, false, msg)
}

func confirmed(ctx context.Context, c *amqp.DeferredConfirmation) error {
	ok, err := c.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("the broker did not accept a message")
	}
	return err
}

func (d *plain) schedule(ctx context.Context, t task) error {
	c, err := d.send(ctx, t)
	if err != nil {
		return err
	}
	return confirmed(ctx, c)
}

func (d *plain) scheduleAll(ctx context.Context, list []task) error {
	all := make([]*amqp.DeferredConfirmation, len(list))
	for i, t := range list {
		var err error
		if all[i], err = d.send(ctx, t); err != nil {
			return err
		}
	}
	for _, c := range all {
		if err := confirmed(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// run connects again after a lost connection, because the client does not.
func (d *plain) run(ctx context.Context, h handler) error {
	for ctx.Err() == nil {
		if err := d.consume(ctx, h); err != nil {
			_ = wait.For(ctx, time.Second) // the loop checks it
		}
	}
	return nil
}

func (d *plain) consume(ctx context.Context, h handler) error {
	conn, err := d.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(4*workers, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.ConsumeWithContext(ctx, d.queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	var all errgroup.Group
	for range workers {
		all.Go(func() error {
			for m := range deliveries {
				err := h(ctx, m.Body, nil)
				if err == nil {
					err = m.Ack(false)
				}
				if err != nil && ctx.Err() == nil {
					return fmt.Errorf("delivery: %w", err)
				}
			}
			return nil
		})
	}
	return all.Wait()
}

func (d *plain) close(context.Context) error {
	_ = d.conn.Close() // the broker may have restarted since
	conn, err := d.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDelete(d.queue, false, false, false)
	return errors.Join(err, d.delays.remove(ch))
}
