package wire

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// CloseWait is how long the end of a channel waits for a broker that does not answer.
// The channel then ends with its connection.
const CloseWait = 2 * time.Second

// CloseChannel ends a channel, and waits for that until ctx ends or CloseWait has passed.
// What was not acknowledged goes back to the queue.
func CloseChannel(ctx context.Context, ch *amqp.Channel) {
	ctx, cancel := context.WithTimeout(ctx, CloseWait)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- ch.Close() }() // also when ctx has ended already
	_ = wait.Result(ctx, closed)
}

// Window is how many acknowledgements and returns of a channel a broker has under way to a quorum queue at a time.
// Those that wait behind them are lost when the channel ends.
const Window = 32

// Consumers returns how many consumers a queue counts. A quorum queue counts a cancelled one until its last message
// is settled.
func Consumers(ctx context.Context, ch *amqp.Channel, queue string) (int, error) {
	q, err := wait.Value(ctx, func() (amqp.Queue, error) {
		return ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	})
	return q.Consumers, err
}

// AwaitSettled waits until a queue counts at most so many consumers: those beside the cancelled ones of the channel,
// whose acknowledgements and returns it has then taken note of. As others may have begun to consume, it waits for
// some seconds at most.
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

// Channel runs operations one after another on a channel of Conn, and opens another one
// after each operation that failed.
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

// Close closes the channel. Another Do opens one again.
func (c *Channel) Close() {
	if c.ch != nil {
		_ = c.ch.Close() // the broker may have closed it
		c.ch = nil
	}
}
