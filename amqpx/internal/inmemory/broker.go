// Package inmemory is amqptest's broker with what tests of several packages ask it, and what
// programs do there that are not ours. It is for tests in a testing/synctest bubble.
package inmemory

import (
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// Versions are those of RabbitMQ that behave differently.
var Versions = []string{"3.10.8", "4.0.5", "4.3.0"}

// Broker ends with its test, which it fails where something is not as wanted.
type Broker struct {
	testing.TB
	*amqptest.Server

	plain *amqp.Channel // of a foreign program
}

// New starts a broker.
func New(t testing.TB, o amqptest.Options) *Broker {
	t.Helper()
	return &Broker{TB: t, Server: amqptest.Start(t, o)}
}

// After waits for d of the bubble's time, and for everything in the bubble to come to rest.
func After(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Channel returns a plain channel, of a program that does not use amqpx. A new one replaces
// one that was closed.
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

// Delete deletes a queue.
func (b *Broker) Delete(queue string) {
	b.Helper()
	if _, err := b.Channel().QueueDelete(queue, false, false, false); err != nil {
		b.Fatal(err)
	}
}

// Publish publishes a message, which is in its queue when this returns.
func (b *Broker) Publish(exchange, key string, p amqp.Publishing) {
	b.Helper()
	if err := b.Channel().PublishWithContext(b.Context(), exchange, key, false, false, p); err != nil {
		b.Fatal(err)
	}
	synctest.Wait()
}

// State returns the state of a queue that has to be there.
func (b *Broker) State(queue string) amqptest.QueueState {
	b.Helper()
	q, ok := b.Queue(queue)
	if !ok {
		b.Fatalf("there is no queue %s", queue)
	}
	return q
}

// Holds fails the test unless so many messages of a queue are ready and held by consumers.
func (b *Broker) Holds(queue string, ready, unacked int) {
	b.Helper()
	if q := b.State(queue); q.Ready != ready || q.Unacked != unacked {
		parked, _ := b.Queue("delay.parked")
		b.Errorf("%s has %d messages ready and %d held, want %d and %d; %d are parked", queue, q.Ready, q.Unacked, ready, unacked, parked.Ready)
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
