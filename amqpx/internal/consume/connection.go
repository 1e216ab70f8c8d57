package consume

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// A broker closes the whole connection (error 541) when a client consumes from a queue whose process is gone. The error
// does not name the queue. Therefore the consumers of a connection start one after another, and the consumer that was
// starting is the suspect. From then on, that consumer starts on a separate connection.

// startPatience is how long a consumer waits for other consumers to start first. A queue without a leader may take
// longer to answer, but it delays the other consumers by no more than that. If the broker then closes the connection,
// all consumers that were starting are suspects.
const startPatience = time.Second

// connection waits for the connection to consume on and, for a while, for the publishing connection. Without a
// publishing connection, the consumer could neither renew, retry nor dead-letter messages, and each lost connection
// would bring them closer to their queue's delivery limit.
//
// Before the consumer has started for the first time, connection returns an error if the broker permanently refuses the
// shared connection, for example because of wrong credentials or missing access.
func (k *Consumer) connection(ctx context.Context) (*Session, error) {
	publishing, cancel := context.WithTimeout(ctx, k.all.cfg.Wire.ReconnectMax)
	_, _ = k.all.cfg.Publisher.Publishing(publishing, false)
	cancel()
	if own := k.own.Load(); own != nil {
		return own.Wait(ctx, false)
	}
	if !k.began {
		if err := k.all.link.First(ctx, nil); err != nil {
			k.barred = true
			return nil, err
		}
	}
	return k.all.link.Wait(ctx, false)
}

// startOn starts a broker consumer on a subscription. If the broker closes the connection because of that, startOn
// gives this consumer its own connection for the next attempt, and returns an error.
func (k *Consumer) startOn(s *subscription, b brokerConsumer) (<-chan amqp.Delivery, error) {
	patience, cancel := context.WithTimeout(s.live, startPatience)
	defer cancel()
	if s.sess.starts.Lock(patience) == nil {
		defer s.sess.starts.Unlock()
	}
	deliveries, err := s.consume(k.set.Queue, b)
	if wire.EndsConnection(err) {
		k.isolate()
		err = fmt.Errorf("the broker closed the connection when this client consumed from the queue; the queue's process may be gone, "+
			"and other consumers are not affected: %w", err)
	}
	return deliveries, channels.Advised(err)
}

// isolate gives the consumer its own connection, unless it already has one.
func (k *Consumer) isolate() {
	role := "consume " + k.set.Queue
	own := wire.NewLink(k.all.cfg.Over, role, k.all.cfg.Wire, newSession, k.all.cfg.Changed(role))
	if k.own.CompareAndSwap(nil, own) {
		own.Start()
	}
}

// endOwn closes the consumer's own connection, if it has one. It stops waiting for the broker when the context of the
// client's Close ends.
func (k *Consumer) endOwn() {
	if own := k.own.Load(); own != nil {
		_ = wait.Done(k.all.cfg.Forced, func() error { own.Close(); return nil })
	}
}
