package inspect_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
)

// memory is an in-memory broker with helper methods for tests.
type memory struct{ *inmemory.Broker }

// inMemory runs a test with an in-memory broker in a synctest bubble, in which time passes without real waiting.
func inMemory(t *testing.T, test func(t *testing.T, m *memory)) {
	t.Helper()
	inMemoryOf(t, amqptest.Options{}, test)
}

// inMemoryOf is like inMemory, but with the given broker options.
func inMemoryOf(t *testing.T, opts amqptest.Options, test func(t *testing.T, m *memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, &memory{inmemory.New(t, opts)}) })
}

// inEachVersion runs a test once for each of the RabbitMQ versions that behave differently.
func inEachVersion(t *testing.T, test func(t *testing.T, m *memory)) {
	t.Helper()
	for _, version := range inmemory.Versions {
		t.Run(version, func(t *testing.T) { inMemoryOf(t, amqptest.Options{Version: version}, test) })
	}
}

// dialed returns a connection on which a test can inspect queues.
func (m *memory) dialed(t *testing.T) *amqp.Connection {
	t.Helper()
	conn, err := inspect.Dial(t.Context(), amqpx.Config{URL: m.URL(), Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	m.Cleanup(func() { _ = conn.Close() })
	return conn
}

// client is an amqpx.Client of the in-memory broker, with helper methods for tests.
type client struct {
	*amqpx.Client

	m *memory
}

// open returns a client that is closed when the test ends.
func (m *memory) open(cfg amqpx.Config) *client {
	m.Helper()
	cfg.URL, cfg.Dial = m.URL(), m.Dial
	c, err := amqpx.Open(m.Context(), cfg)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			m.Errorf("Close returned %v, want nil", err)
		}
	})
	return &client{c, m}
}

// mustSend sends messages, and stops the test if one of them cannot be sent.
func (c *client) mustSend(msgs ...amqpx.Message) {
	c.m.Helper()
	for _, msg := range msgs {
		if err := c.Send(c.m.Context(), msg); err != nil {
			c.m.Fatalf("Send of %q returned %v, want nil", msg.ID, err)
		}
	}
}

// consume runs a consumer until stop is called or the client is closed. It fails the test if Consume returns an error.
func (c *client) consume(queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) (stop func()) {
	ctx, cancel := context.WithCancel(c.m.Context())
	result := make(chan error, 1)
	go func() { result <- c.Consume(ctx, queue, h, opts...) }()
	synctest.Wait()
	return func() {
		c.m.Helper()
		cancel()
		if err := <-result; err != nil {
			c.m.Errorf("Consume returned %v, want nil", err)
		}
	}
}

// rejects is a handler that dead-letters messages.
func rejects(context.Context, *amqpx.Delivery) error {
	return amqpx.Reject(errors.New("card rejected"))
}

// collector has a handler that collects the messages that it receives.
type collector struct {
	answer error // the handler's result

	mu  sync.Mutex
	got []handled
}

// handled is a delivery with the time at which its handler started.
type handled struct {
	*amqpx.Delivery

	at time.Time
}

func (k *collector) handle(_ context.Context, d *amqpx.Delivery) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.got = append(k.got, handled{d, time.Now()})
	return k.answer
}

// all returns the deliveries so far, in order of arrival.
func (k *collector) all() []handled {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.got)
}

func (k *collector) attempts() (attempts []int) {
	for _, h := range k.all() {
		attempts = append(attempts, h.Attempt)
	}
	return attempts
}

// since returns, by message id, how long after the given time each message arrived.
func (k *collector) since(began time.Time) map[string][]time.Duration {
	times := map[string][]time.Duration{}
	for _, h := range k.all() {
		times[h.ID] = append(times[h.ID], h.at.Sub(began))
	}
	return times
}
