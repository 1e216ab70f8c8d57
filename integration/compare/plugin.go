package main

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// plugged delays messages with the x-delayed-message plugin.
type plugged struct{ exchange, queue string }

func openPlugin(ctx context.Context, e *env) (system, error) {
	return openPlain(ctx, dialing(e.plugged.URL()), e.name(), &plugged{})
}

func (p *plugged) declare(ch *amqp.Channel, queue string) error {
	p.exchange, p.queue = queue+".delayed", queue
	if err := ch.ExchangeDeclare(p.exchange, "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"}); err != nil {
		return err
	}
	return ch.QueueBind(queue, queue, p.exchange, false, nil)
}

func (p *plugged) address(_ *amqp.Channel, delay time.Duration) (exchange, key string, headers amqp.Table, err error) {
	delay += time.Millisecond - 1 // round up
	return p.exchange, p.queue, amqp.Table{"x-delay": delay.Milliseconds()}, nil
}

func (p *plugged) remove(ch *amqp.Channel) error { return ch.ExchangeDelete(p.exchange, false, false) }
