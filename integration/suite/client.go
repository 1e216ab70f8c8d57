package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// FastReconnect returns the configuration with short reconnect delays, so that tests of lost connections are short. It
// also sets a send timeout that is long enough for a busy machine.
func FastReconnect(cfg amqpx.Config) amqpx.Config {
	cfg.SendTimeout = cmp.Or(cfg.SendTimeout, Patience)
	cfg.ReconnectMin, cfg.ReconnectMax = 5*time.Millisecond, 50*time.Millisecond
	cfg.Heartbeat = 5 * time.Second
	return cfg
}

// OpenClient opens a client and closes it at the end of the test. Without a URL it connects to the shared broker.
func OpenClient(t testing.TB, cfg amqpx.Config) *amqpx.Client {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = broker.Shared(t, broker.Options{}).URL()
	}
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	c, err := amqpx.Open(ctx, FastReconnect(cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.Close(context.Background())
		if _, left := errors.AsType[*amqpx.CloseError](err); err != nil && !left { // if a test has already closed the client
			t.Errorf("closing the client: %v", err)
		}
	})
	return c
}

var queueNumber atomic.Int64

// NewQueue returns a queue name for this test. At the end of the test it deletes the queue with its dead letters.
func NewQueue(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("it.%d.%d", time.Now().UnixNano(), queueNumber.Add(1))
	url := broker.Shared(t, broker.Options{}).URL()
	t.Cleanup(func() {
		conn, err := amqp.Dial(url)
		if err != nil {
			t.Errorf("deleting the queue: %v", err)
			return
		}
		defer func() { _ = conn.Close() }()
		for _, q := range []string{name, name + ".dead"} {
			if ch, err := conn.Channel(); err == nil {
				_, _ = ch.QueueDelete(q, false, false, false)
				_ = ch.Close()
			}
		}
	})
	return name
}

// Consume runs a consumer until the end of the test, and fails the test if the consumer returns an error.
func Consume(t testing.TB, c *amqpx.Client, queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- c.Consume(ctx, queue, h, opts...) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-result })
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil && !errors.Is(err, amqpx.ErrDrainTimeout) {
			t.Errorf("consuming: %v", err)
		}
	})
	return stop
}

// RawChannel returns a channel of an AMQP client that does not use rabbitdelay.
func RawChannel(t testing.TB) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(broker.Shared(t, broker.Options{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the broker may have closed it
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// RawGet waits for a message and gets it with a plain AMQP client.
func RawGet(t testing.TB, queue string) amqp.Delivery {
	t.Helper()
	ch := RawChannel(t)
	var d amqp.Delivery
	Eventually(t, "there is a message in "+queue, func() bool {
		got, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		d = got
		return ok
	})
	return d
}

// DeleteQueue deletes a queue of the shared broker.
func DeleteQueue(t testing.TB, name string) error {
	t.Helper()
	conn, err := amqp.Dial(broker.Shared(t, broker.Options{}).URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDelete(name, false, false, false)
	return err
}
