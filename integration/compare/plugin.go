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

// delayed sends messages through an exchange of the x-delayed-message plugin, with the client of RabbitMQ's team.
type delayed struct {
	dial           func() (*amqp.Connection, error)
	conn           *amqp.Connection // the connection that publish uses
	exchange, name string           // name is the name of the queue and the routing key

	mu      sync.Mutex // guards publish, because a channel's frames must not mix
	publish *amqp.Channel
}

func openPlugin(ctx context.Context, e *env) (system, error) {
	return openDelayed(ctx, e.name(), func() (*amqp.Connection, error) { return amqp.Dial(e.plugged.URL()) })
}

func openDelayed(ctx context.Context, name string, dial func() (*amqp.Connection, error)) (_ system, err error) {
	d := &delayed{dial: dial, exchange: name + ".delayed", name: name}
	if d.conn, err = dial(); err != nil {
		return nil, err
	}
	if err := d.declare(); err != nil {
		return nil, errors.Join(err, d.close(ctx))
	}
	return d, nil
}

func (d *delayed) declare() (err error) {
	if d.publish, err = d.conn.Channel(); err != nil {
		return err
	}
	if err := d.publish.Confirm(false); err != nil {
		return err
	}
	if err := d.publish.ExchangeDeclare(d.exchange, "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"}); err != nil {
		return err
	}
	if _, err := d.publish.QueueDeclare(d.name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return err
	}
	return d.publish.QueueBind(d.name, d.name, d.exchange, false, nil)
}

func (d *delayed) send(ctx context.Context, t task) (*amqp.DeferredConfirmation, error) {
	delay := max(0, time.Until(t.due)) + time.Millisecond - 1 // rounded up
	msg := amqp.Publishing{
		DeliveryMode: amqp.Persistent,
		Headers:      amqp.Table{"x-delay": delay.Milliseconds()},
		Body:         t.payload(),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.publish.PublishWithDeferredConfirmWithContext(ctx, d.exchange, d.name, false, false, msg)
}

func confirmed(ctx context.Context, c *amqp.DeferredConfirmation) error {
	ok, err := c.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("the broker refused a message")
	}
	return err
}

func (d *delayed) schedule(ctx context.Context, t task) error {
	c, err := d.send(ctx, t)
	if err != nil {
		return err
	}
	return confirmed(ctx, c)
}

func (d *delayed) scheduleAll(ctx context.Context, list []task) error {
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
func (d *delayed) run(ctx context.Context, h handler) error {
	for ctx.Err() == nil {
		if err := d.consume(ctx, h); err != nil {
			_ = wait.For(ctx, time.Second) // the loop checks it
		}
	}
	return nil
}

func (d *delayed) consume(ctx context.Context, h handler) error {
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
	deliveries, err := ch.ConsumeWithContext(ctx, d.name, "", false, false, false, false, nil)
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

func (d *delayed) close(context.Context) error {
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
	_, err = ch.QueueDelete(d.name, false, false, false)
	return errors.Join(err, ch.ExchangeDelete(d.exchange, false, false))
}
