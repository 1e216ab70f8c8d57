package wire

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// CloseWait is how long closing a channel waits for a broker that does not answer. After that the channel stays open
// until its connection ends.
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

// Window is how many acknowledgements and returns of a channel to a quorum queue the broker processes concurrently.
// Further ones wait, and are lost when the channel ends.
const Window = 32

// Consumers returns how many consumers a queue counts. A quorum queue counts a cancelled consumer until its last
// message is settled.
func Consumers(ctx context.Context, ch *amqp.Channel, queue string) (int, error) {
	q, err := wait.Value(ctx, func() (amqp.Queue, error) {
		return ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	})
	return q.Consumers, err
}

// AwaitSettled waits until a queue counts at most the given number of consumers, which should be the number of
// consumers other than the cancelled ones of the channel. The queue has then processed the acknowledgements and returns
// of these. Other clients may have begun to consume, so it waits for some seconds at most.
func AwaitSettled(ctx context.Context, ch *amqp.Channel, queue string, most int) error {
	for try := range 100 {
		n, err := Consumers(ctx, ch, queue)
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

// Do runs an operation.
func (c *Channel) Do(op func(ch *amqp.Channel) error) (err error) {
	if c.ch == nil {
		if c.ch, err = c.Conn.Channel(); err != nil {
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
		_ = c.ch.Close() // the broker may already have closed it
		c.ch = nil
	}
}
