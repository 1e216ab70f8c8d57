package amqpx

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// A broker ends the whole connection (541) when a queue is consumed whose process is gone. Its answer does not
// name the queue, so the consumers of a connection start one after another: the one that was starting is the
// suspect, and starts on a connection of its own from then on.

// startPatience is how long a consumer waits for others to start first. A queue without a leader may take longer
// to answer, and holds up nobody: if the connection then ends, all that were starting are suspects.
const startPatience = time.Second

// connection waits for the connection to consume on, and for a while for the publishing one: without that, messages
// would be taken that can be neither renewed, retried nor dead-lettered, and each cut would bring them nearer to their
// queue's delivery limit. Until the first intake it gives up when the broker refuses the client's consuming connection
// for good: wrong credentials, no access.
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

// startOn starts a broker consumer on a subscription, and gives the consumer a connection of its own if the broker
// ends this one.
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

// isolate gives the consumer a connection of its own, unless it has one.
func (k *consumer) isolate() {
	role := "consume " + k.queue
	own := wire.NewLink(k.c.over, role, k.c.cfg.wire(), k.c.setupConsume, k.c.stateHook(role))
	if k.own.CompareAndSwap(nil, own) {
		own.Start()
	}
}

// endOwn closes the consumer's own connection, if there is one. It waits for the broker no longer than Close does.
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
