package wire

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// CloseWait is how long closing a channel waits for a broker that does not answer. After that the channel stays open
// until the broker answers or the connection ends.
const CloseWait = 2 * time.Second

// CloseChannel closes a channel. It waits until the broker answers, ctx ends or CloseWait has passed. Unacknowledged
// messages return to the queue.
func CloseChannel(ctx context.Context, ch *amqp.Channel) {
	ctx, cancel := context.WithTimeout(ctx, CloseWait)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- ch.Close() }() // runs even if ctx has already ended
	_ = wait.Result(ctx, closed)
}

// Window is the number of acks and nacks from one channel that a quorum queue processes concurrently. Any more have to
// wait, and are lost if the channel is closed.
const Window = 32

// Consumers returns the number of consumers that a queue counts. A quorum queue counts a cancelled consumer until its
// last message is settled.
func Consumers(ctx context.Context, ch *amqp.Channel, queue string) (int, error) {
	q, err := wait.Value(ctx, func() (amqp.Queue, error) {
		return channels.Count(ctx, ch, queue)
	})
	return q.Consumers, err
}

// AwaitSettled waits until a queue counts at most the given number of consumers. Pass the number of the queue's
// consumers excluding this channel's cancelled ones. When the count has decreased, the queue has processed the acks and
// nacks of the cancelled consumers. Other clients may have begun to consume in the meantime, so AwaitSettled gives up
// and returns nil after about five seconds, or if the queue's leader is too busy to count.
func AwaitSettled(ctx context.Context, ch *amqp.Channel, queue string, most int) error {
	for try := range 100 {
		n, err := Consumers(ctx, ch, queue)
		if errors.Is(err, channels.ErrUnavailable) {
			return nil // the queue's leader is too busy to count
		}
		if err != nil || n <= most {
			return err
		}
		if err := wait.For(ctx, time.Duration(try)*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Channel runs operations one after another on a channel of Conn. After an operation that failed, it opens a new
// channel.
type Channel struct {
	Conn *amqp.Connection
	ch   *amqp.Channel
}

// Do runs an operation on the channel, and opens the channel first if necessary.
func (c *Channel) Do(op func(ch *amqp.Channel) error) (err error) {
	if c.ch == nil {
		if c.ch, err = channels.Open(c.Conn); err != nil {
			c.ch = nil
			return err
		}
	}
	if err = op(c.ch); err != nil {
		c.Close()
	}
	return err
}

// Close closes the channel. Do opens a new one if necessary.
func (c *Channel) Close() {
	if c.ch != nil {
		_ = c.ch.Close() // ignore the error: the broker may already have closed the channel
		c.ch = nil
	}
}
