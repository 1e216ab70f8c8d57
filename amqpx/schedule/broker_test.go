package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// site is a store that sends its tasks through an in-memory broker, with consumers, in a bubble.
type site struct {
	*testing.T
	*Store

	db     *sql.DB
	srv    *amqptest.Server
	client *amqpx.Client
	plain  *amqp.Channel
	began  time.Time

	mu      sync.Mutex
	effects []effect
}

// effect is one run of a handler's function.
type effect struct {
	queue string
	id    string
	at    time.Duration // since the start of the test
}

func onSite(t *testing.T, cfg Config, test func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		check(t, err)
		defer func() { _ = client.Close(t.Context()) }()
		conn, err := srv.Connect()
		check(t, err)
		defer func() { _ = conn.Close() }()
		plain, err := conn.Channel()
		check(t, err)
		cfg.VirtualTime = true
		store, db := openStore(t, client, cfg)
		defer func() { _ = db.Close() }()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- store.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		test(t, &site{T: t, Store: store, db: db, srv: srv, client: client, plain: plain, began: time.Now()})
	})
}

// after waits for d, and then until everything in the bubble is idle.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// exchange declares a fanout exchange and binds queues to it.
func (s *site) exchange(name string, queues ...string) {
	s.Helper()
	check(s.T, s.plain.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil))
	for _, q := range queues {
		check(s.T, s.plain.QueueBind(q, "", name, false, nil))
	}
}

// noted returns a handler function that records an effect and then returns the result of answer.
func (s *site) noted(answer func(d *amqpx.Delivery) error) Func {
	return func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
		s.mu.Lock()
		s.effects = append(s.effects, effect{d.Queue, d.ID, time.Since(s.began)})
		s.mu.Unlock()
		if answer == nil {
			return nil
		}
		return answer(d)
	}
}

// consume runs a handler on a queue until the test ends or stop is called.
func (s *site) consume(queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) (stop func()) {
	s.Helper()
	opts = append([]amqpx.ConsumeOption{amqpx.WithRetry(topology.Retry{Jitter: topology.NoJitter})}, opts...)
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- s.client.Consume(ctx, queue, h, opts...) }()
	after(time.Second)
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, amqpx.ErrDrainTimeout) {
			s.Errorf("Consume: got %v, want nil or ErrDrainTimeout", err)
		}
	})
}

// consumeAll consumes from each queue with the same handler.
func (s *site) consumeAll(queues []string, h amqpx.Handler) (stop func()) {
	var stops []func()
	for _, q := range queues {
		stops = append(stops, s.consume(q, h))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// saw lists the effects of a task as "queue at", in order.
func (s *site) saw(id string) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.effects {
		if e.id == id {
			list = append(list, fmt.Sprintf("%s %v", e.queue, e.at.Round(time.Second)))
		}
	}
	return list
}

// wantEffects fails the test unless a task had exactly these effects, in any order.
func (s *site) wantEffects(id string, want ...string) {
	s.Helper()
	got := s.saw(id)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.Errorf("effects of task %s: got %q, want %q", id, got, want)
	}
}

// wantTask fails the test unless the task has this status and this number of failed attempts.
func (s *site) wantTask(id string, status Status, attempts int) {
	s.Helper()
	got, err := s.Get(s.Context(), NoTx, id)
	check(s.T, err)
	if got.Status != status || got.Attempts != attempts {
		s.Errorf("task %s: got %s after %d failed attempts with the error %q, want %s after %d", id, got.Status, got.Attempts, got.LastError, status, attempts)
	}
}

func (s *site) schedule(t Task) {
	s.Helper()
	check(s.T, s.Schedule(s.Context(), NoTx, t))
}

// replacing returns a task that replaces an existing one.
func replacing(t Task) Task {
	t.Replace = true
	return t
}
