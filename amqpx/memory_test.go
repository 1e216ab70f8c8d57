package amqpx_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
	logs "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
)

// memory is an in-memory broker with helper methods for tests.
type memory struct{ *inmemory.Broker }

func newMemory(t testing.TB, opts amqptest.Options) *memory {
	t.Helper()
	return &memory{inmemory.New(t, opts)}
}

// inMemory runs a test with an in-memory broker in a synctest bubble, in which time passes without real waiting.
func inMemory(t *testing.T, test func(t *testing.T, m *memory)) {
	t.Helper()
	inMemoryOf(t, amqptest.Options{}, test)
}

// inMemoryOf is like inMemory, but with the given broker options.
func inMemoryOf(t *testing.T, opts amqptest.Options, test func(t *testing.T, m *memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newMemory(t, opts)) })
}

// inEachVersion runs a test once for each of the RabbitMQ versions that behave differently.
func inEachVersion(t *testing.T, opts amqptest.Options, test func(t *testing.T, m *memory)) {
	t.Helper()
	for _, opts.Version = range inmemory.Versions {
		t.Run(opts.Version, func(t *testing.T) { inMemoryOf(t, opts, test) })
	}
}

// after waits for d of the bubble's time, and until everything in the bubble is idle.
func after(d time.Duration) { inmemory.After(d) }

// within returns a context that expires after the given time.
func (m *memory) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(m.Context(), d)
	m.Cleanup(cancel)
	return ctx
}

// hasConsumers fails the test unless a queue has the given number of consumers.
func (m *memory) hasConsumers(queue string, n int) {
	m.Helper()
	if got := m.State(queue).Consumers; got != n {
		m.Errorf("%s has %d consumers, want %d", queue, got, n)
	}
}

// delayed counts the messages in the delay queues of the bucket strategy.
func (m *memory) delayed() (n int) {
	for _, name := range m.Queues() {
		if strings.HasPrefix(name, "delay.bucket") {
			n += m.State(name).Ready
		}
	}
	return n
}

// connections returns the connection names that end in the given suffix.
func (m *memory) connections(suffix string) (names []string) {
	for _, c := range m.Connections() {
		if strings.HasSuffix(c.Name, suffix) {
			names = append(names, c.Name)
		}
	}
	return names
}

// refuseDelays makes every delay queue refuse messages.
func (m *memory) refuseDelays() (undo func()) {
	var all []func()
	for _, e := range m.Exchanges() {
		if strings.HasPrefix(e.Name, "delay.bucket") {
			all = append(all, m.Nack(e.Name))
		}
	}
	return func() {
		for _, undo := range all {
			undo()
		}
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
	c, err := m.tryOpen(m.Context(), cfg)
	if err != nil {
		m.Fatal(err)
	}
	return c
}

// tryOpen is like open, but returns an error instead of failing the test.
func (m *memory) tryOpen(ctx context.Context, cfg amqpx.Config) (*client, error) {
	cfg.URL, cfg.Dial = cmp.Or(cfg.URL, m.URL()), m.Dial
	c, err := amqpx.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	m.Cleanup(func() {
		err := c.Close(context.Background())
		if _, left := errors.AsType[*amqpx.CloseError](err); err != nil && !left { // a test that closes the client checks this error itself
			m.Errorf("Close returned %v, want nil", err)
		}
	})
	return &client{c, m}, nil
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

// sending starts to send a message in the background, and returns once the message is sent or has to wait.
func (c *client) sending(msg amqpx.Message) (result <-chan error) {
	ended := make(chan error, 1)
	go func() { ended <- c.Send(c.m.Context(), msg) }()
	synctest.Wait()
	return ended
}

// consumer is a call of Consume that runs in the background.
type consumer struct {
	m      *memory
	cancel context.CancelFunc
	result chan error
}

// consume runs a consumer until it is stopped, or until the client is closed.
func (c *client) consume(queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) *consumer {
	return c.consumeIn(c.m.Context(), queue, h, opts...)
}

func (c *client) consumeIn(ctx context.Context, queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) *consumer {
	ctx, cancel := context.WithCancel(ctx)
	k := &consumer{c.m, cancel, make(chan error, 1)}
	go func() { k.result <- c.Consume(ctx, queue, h, opts...) }()
	synctest.Wait()
	return k
}

// end stops a consumer and returns the result of Consume.
func (k *consumer) end() error {
	k.cancel()
	return <-k.result
}

// stop stops a consumer, and fails the test if Consume returned an error.
func (k *consumer) stop() {
	k.m.Helper()
	if err := k.end(); err != nil {
		k.m.Errorf("Consume returned %v, want nil", err)
	}
}

// collector has a handler that records the messages that it receives.
type collector struct {
	answer func(d *amqpx.Delivery) error // the handler's result; nil means success

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
	k.got = append(k.got, handled{d, time.Now()})
	k.mu.Unlock()
	if k.answer == nil {
		return nil
	}
	return k.answer(d)
}

// all returns the deliveries so far, in order of arrival.
func (k *collector) all() []handled {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.got)
}

func (k *collector) ids() (ids []string) {
	for _, h := range k.all() {
		ids = append(ids, h.ID)
	}
	return ids
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

// nothing is a handler that always succeeds.
func nothing(context.Context, *amqpx.Delivery) error { return nil }

// observer records a client's log and the events that its hooks receive.
type observer struct {
	log *logs.ObservedLogs

	mu   sync.Mutex
	seen events
}

// events contains what the hooks of an observer have received.
type events struct {
	states   []string        // state changes, such as "publish connected"
	outcomes []amqpx.Outcome // outcomes of the handlers' deliveries
	sends    int             // including retries and dead letters
	repeated int             // sends that succeeded after more than one try
}

// watched is like open, but also returns an observer of the client.
func (m *memory) watched(cfg amqpx.Config) (*client, *observer) {
	m.Helper()
	core, seen := logs.New(zap.InfoLevel)
	o := &observer{log: seen}
	cfg.Logger, cfg.Hooks = zap.New(core), []amqpx.Hook{{SendStart: o.sendStart, SendEnd: o.sendEnd, HandleEnd: o.handleEnd, ConnectionState: o.connectionState}}
	return m.open(cfg), o
}

// saw returns what an observer has seen so far.
func (o *observer) saw() (e events) {
	o.note(func(seen *events) {
		e = *seen
		e.states, e.outcomes = slices.Clone(e.states), slices.Clone(e.outcomes)
	})
	return e
}

func (o *observer) note(f func(seen *events)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(&o.seen)
}

func (o *observer) connectionState(e amqpx.StateEvent) {
	o.note(func(seen *events) { seen.states = append(seen.states, e.Connection+" "+string(e.State)) })
}

func (o *observer) sendStart(ctx context.Context, _ amqpx.Message, _ amqp.Table) context.Context {
	o.note(func(seen *events) { seen.sends++ })
	return ctx
}

func (o *observer) sendEnd(_ context.Context, e amqpx.SendEnd) {
	if e.Err == nil && e.Tries > 1 {
		o.note(func(seen *events) { seen.repeated++ })
	}
}

func (o *observer) handleEnd(_ context.Context, e amqpx.HandleEnd) {
	o.note(func(seen *events) { seen.outcomes = append(seen.outcomes, e.Outcome) })
}
