package amqpx

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// A broker ends the whole connection (541) when a queue is consumed whose process is gone. The error does not name
// the queue. Therefore the consumers of a connection start one after another, and the consumer that was starting
// is the suspect. From then on it starts on a separate connection.

// startPatience is how long a consumer waits for other consumers to start first. A queue without a leader may take
// longer to answer, but it does not delay the others by more than that. If the connection then ends, all consumers
// that were starting are suspects.
const startPatience = time.Second

// connection waits for the connection to consume on and, for a while, for the publishing connection. Without the
// latter, the consumer would receive messages that it can neither renew, retry nor dead-letter, and each lost
// connection would bring them closer to their queue's delivery limit. Until the first intake, it returns an error
// if the broker permanently refuses the client's consuming connection, for example because of wrong credentials or
// missing access.
func (k *consumer) connection(ctx context.Context) (*session, error) {
	publishing, cancel := context.WithTimeout(ctx, k.c.cfg.ReconnectMax)
	_, _ = k.c.pub.Wait(publishing, false)
	cancel()
	if own := k.own.Load(); own != nil {
		return own.Wait(ctx, false)
	}
	if !k.began {
		if err := k.c.con.First(ctx, nil); err != nil {
			k.barred = true
			return nil, err
		}
	}
	return k.c.con.Wait(ctx, false)
}

// startOn starts a broker consumer on a subscription. If the broker ends the connection over that, startOn gives
// this consumer a connection of its own.
func (k *consumer) startOn(s *subscription, p place) (<-chan amqp.Delivery, error) {
	patience, cancel := context.WithTimeout(s.live, startPatience)
	defer cancel()
	if s.sess.starts.Lock(patience) == nil {
		defer s.sess.starts.Unlock()
	}
	deliveries, err := s.consume(k.queue, p)
	if wire.EndsConnection(err) {
		k.isolate()
		err = fmt.Errorf("the broker ended the connection when the queue was consumed; the queue's process may be gone, "+
			"and other consumers are not affected: %w", err)
	}
	return deliveries, err
}

// isolate gives the consumer a connection of its own, unless it already has one.
func (k *consumer) isolate() {
	role := "consume " + k.queue
	own := wire.NewLink(k.c.over, role, k.c.cfg.wire(), k.c.setupConsume, k.c.stateHook(role))
	if k.own.CompareAndSwap(nil, own) {
		own.Start()
	}
}

// endOwn closes the consumer's own connection, if it has one. It does not wait for the broker past the end of
// Close's context.
func (k *consumer) endOwn() {
	if own := k.own.Load(); own != nil {
		_ = wait.Done(k.c.forced, func() error { own.Close(); return nil })
	}
}

// consuming returns the connections on which the client consumes.
func (c *Client) consuming() []*wire.Link[*session] {
	all := []*wire.Link[*session]{c.con}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.running {
		if own := k.own.Load(); own != nil {
			all = append(all, own)
		}
	}
	return all
}
