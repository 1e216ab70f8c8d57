package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// Tasks to an exchange that three queues are bound to: each queue has each effect
// once, although every message comes twice, some attempts fail, and one subscriber
// rejects some. What was cancelled happens in none.
func TestScheduleSubscribers(t *testing.T) {
	t.Parallel()
	const n = 60
	eachDriver(t, func(t *testing.T, db businessDB) {
		db.mustExec(t, "CREATE TABLE effects (queue VARCHAR(255) NOT NULL, id VARCHAR(255) NOT NULL)")
		client := openClient(t, amqpx.Config{})
		s := newStore(t, db, client, schedule.Config{PollInterval: 50 * time.Millisecond})
		subscribers := []string{newQueue(t), newQueue(t), newQueue(t)}
		exchange := subscribers[0] + ".events"
		for i, queue := range subscribers {
			consume(t, client, queue, db.taskHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
				if _, err := tx.ExecContext(ctx, db.bind("INSERT INTO effects (queue, id) VALUES (?, ?)"), d.Queue, d.ID); err != nil {
					return err
				}
				var number int
				if _, err := fmt.Sscan(d.ID, &number); err != nil {
					return amqpx.Reject(err)
				}
				switch {
				case i == 0 && number%5 == 0 && d.Attempt == 1:
					return amqpx.RetryIn(100*time.Millisecond, errors.New("the first attempt fails"))
				case i == 1 && number%7 == 0:
					return amqpx.Reject(errors.New("not for this subscriber"))
				}
				return nil
			}, schedule.WithGroup(1+15*(i%2))), amqpx.WithConcurrency(8))
		}
		bindAll(t, exchange, subscribers)
		due := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
		var tasks []schedule.Task
		var copies []amqpx.Message
		for i := range n {
			tasks = append(tasks, schedule.Task{ID: fmt.Sprint(i), Exchange: exchange, DeliverAt: due})
			copies = append(copies, amqpx.Message{ID: fmt.Sprint(i), Version: 1, Exchange: exchange, DeliverAt: due})
		}
		mustSucceed(t, s.ScheduleBatch(t.Context(), nil, tasks))
		runStore(t, s)
		mustSucceed(t, client.SendBatch(t.Context(), copies))
		for i := 0; i < n; i += 3 {
			mustSucceed(t, s.Cancel(t.Context(), nil, fmt.Sprint(i)))
		}
		want := func(subscriber int) (count int64) {
			for i := range n {
				if i%3 != 0 && (subscriber != 1 || i%7 != 0) {
					count++
				}
			}
			return count
		}
		effects := func(what, queue string) int64 {
			return db.queryInt(t, "SELECT COUNT("+what+") FROM effects WHERE queue = ?", queue)
		}
		within(t, time.Minute, "every subscriber has its effects", func() bool {
			for i, queue := range subscribers {
				if effects("DISTINCT id", queue) < want(i) {
					return false
				}
			}
			return true
		})
		// The copies, which have no effect, are through as well.
		within(t, time.Minute, "every message is settled", func() bool {
			for _, queue := range subscribers {
				if info, err := client.QueueInfo(t.Context(), queue); err != nil || info.Ready > 0 {
					return false
				}
			}
			return true
		})
		for i, queue := range subscribers {
			if all, distinct := effects("*", queue), effects("DISTINCT id", queue); all != want(i) || distinct != want(i) {
				t.Errorf("subscriber %d has %d effects of %d tasks, expected %d", i, all, distinct, want(i))
			}
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM effects WHERE id IN (SELECT id FROM rabbitdelay_tasks WHERE status = 'cancelled')"); n != 0 {
			t.Errorf("%d effects of cancelled tasks", n)
		}
	})
}

// bindAll declares a fanout exchange for the time of the test, and binds queues to it.
func bindAll(t *testing.T, exchange string, queues []string) {
	t.Helper()
	conn, err := amqp.Dial(broker.Shared(t, broker.Options{}).URL())
	mustSucceed(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	mustSucceed(t, err)
	mustSucceed(t, ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false, nil))
	t.Cleanup(func() {
		if err := ch.ExchangeDelete(exchange, false, false); err != nil {
			t.Error(err)
		}
	})
	for _, queue := range queues {
		waitFor(t, "queue "+queue+" is there", func() bool {
			own, err := conn.Channel()
			mustSucceed(t, err)
			defer func() { _ = own.Close() }()
			return own.QueueBind(queue, "", exchange, false, nil) == nil
		})
	}
}

// Two deliveries for each of three subscribers, and the cancellation, meet: either
// each subscriber has the effect once, or none has it.
func TestScheduleConcurrentSubscribers(t *testing.T) {
	t.Parallel()
	const subscribers, deliveries = 3, 2
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		past := time.Now().Add(-time.Second)
		var effects [subscribers]atomic.Int32
		var skips atomic.Int32
		handle := db.taskHandler(func(_ context.Context, _ schedule.Executor, d *amqpx.Delivery) error {
			effects[d.Body[0]].Add(1)
			return nil
		}, schedule.OnSkip(func(context.Context, *amqpx.Delivery, schedule.SkipReason) { skips.Add(1) }))
		for round := range 60 {
			id := fmt.Sprint(round)
			mustSucceed(t, s.Schedule(t.Context(), nil, schedule.Task{ID: id, Exchange: "events", DeliverAt: past}))
			skips.Store(0)
			for i := range effects {
				effects[i].Store(0)
			}
			cancelled := false
			for i, err := range together(1+subscribers*deliveries, func(i int) error {
				if i == 0 {
					return s.Cancel(t.Context(), nil, id)
				}
				n := byte(i % subscribers)
				return handle(t.Context(), &amqpx.Delivery{
					ID: id, Queue: fmt.Sprint("q", n), Exchange: "events", Version: 1, Attempt: 1, MaxAttempts: 3, Body: []byte{n},
				})
			}) {
				switch {
				case i == 0 && err == nil:
					cancelled = true
				case i == 0 && !errors.Is(err, schedule.ErrStatus), i > 0 && err != nil:
					t.Fatalf("round %d: %v", round, err)
				}
			}
			want := int32(1)
			if cancelled {
				want = 0
			}
			for i := range effects {
				if got := effects[i].Load(); got != want {
					t.Fatalf("round %d: cancelled %v, %d effects of subscriber %d", round, cancelled, got, i)
				}
			}
			if got := skips.Load(); got != subscribers*deliveries-subscribers*want {
				t.Fatalf("round %d: cancelled %v, %d skips", round, cancelled, got)
			}
		}
	})
}
