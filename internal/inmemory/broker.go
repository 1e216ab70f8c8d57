// Package inmemory extends amqptest's broker with helpers that the tests of several packages share. Some of them act as
// a program that does not use rabbitdelay. The package is for tests in a testing/synctest bubble.
package inmemory

import (
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// Versions lists RabbitMQ versions that behave differently, for tests that have to pass with each of them.
var Versions = []string{"3.10.8", "4.0.5", "4.3.0"}

// Broker is a broker that stops when its test ends. Its methods fail the test on errors.
type Broker struct {
	testing.TB
	*amqptest.Server

	plain *amqp.Channel // the channel that Channel returns; nil before the first call
}

// New starts a broker with the given options, without a client.
func New(t testing.TB, o amqptest.Options) *Broker {
	t.Helper()
	return &Broker{TB: t, Server: amqptest.Start(t, o)}
}

// After waits for d of the bubble's time, and then until everything in the bubble is blocked.
func After(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Channel returns a plain AMQP channel, for what a program without rabbitdelay would do. Every call returns the same
// channel, or a new one on a new connection if that channel was closed.
func (b *Broker) Channel() *amqp.Channel {
	b.Helper()
	if b.plain != nil && !b.plain.IsClosed() {
		return b.plain
	}
	conn, err := b.Connect()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	if b.plain, err = conn.Channel(); err != nil {
		b.Fatal(err)
	}
	return b.plain
}

// Declare declares a durable queue.
func (b *Broker) Declare(queue string, args amqp.Table) {
	b.Helper()
	if _, err := b.Channel().QueueDeclare(queue, true, false, false, false, args); err != nil {
		b.Fatal(err)
	}
}

// Delete deletes a queue with its messages.
func (b *Broker) Delete(queue string) {
	b.Helper()
	if _, err := b.Channel().QueueDelete(queue, false, false, false); err != nil {
		b.Fatal(err)
	}
}

// Publish publishes a message. The message is in its queue when Publish returns.
func (b *Broker) Publish(exchange, key string, p amqp.Publishing) {
	b.Helper()
	if err := b.Channel().PublishWithContext(b.Context(), exchange, key, false, false, p); err != nil {
		b.Fatal(err)
	}
	synctest.Wait()
}

// State returns the state of a queue, which must exist.
func (b *Broker) State(queue string) amqptest.QueueState {
	b.Helper()
	q, ok := b.Queue(queue)
	if !ok {
		b.Fatalf("there is no queue %s", queue)
	}
	return q
}

// Holds fails the test unless the given numbers of a queue's messages are ready and unacknowledged.
func (b *Broker) Holds(queue string, ready, unacked int) {
	b.Helper()
	if q := b.State(queue); q.Ready != ready || q.Unacked != unacked {
		parked, _ := b.Queue("delay.parked")
		b.Errorf("%s has %d ready and %d unacknowledged messages, want %d and %d; %d are parked", queue, q.Ready, q.Unacked, ready, unacked, parked.Ready)
	}
}

// IDs returns the ids of the messages that are ready in a queue.
func (b *Broker) IDs(queue string) (ids []string) {
	b.Helper()
	for _, m := range b.State(queue).Messages {
		ids = append(ids, m.MessageId)
	}
	return ids
}
