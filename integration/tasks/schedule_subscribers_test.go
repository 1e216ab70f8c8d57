package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// Tasks are sent to an exchange that three queues are bound to. Each queue has each effect once, although every message
// arrives twice, some attempts fail, and one subscriber rejects some messages. A cancelled task has no effect in any
// queue.
func TestScheduleSubscribers(t *testing.T) {
	t.Parallel()
	const n = 60
	eachDriver(t, func(t *testing.T, db businessDB) {
		db.mustExec(t, "CREATE TABLE effects (queue VARCHAR(255) NOT NULL, id VARCHAR(255) NOT NULL)")
		client := suite.OpenClient(t, amqpx.Config{})
		s := newStore(t, db, client, schedule.Config{PollInterval: 50 * time.Millisecond})
		subscribers := []string{suite.NewQueue(t), suite.NewQueue(t), suite.NewQueue(t)}
		exchange := subscribers[0] + ".events"
		for i, queue := range subscribers {
			suite.Consume(t, client, queue, db.taskHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
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
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
		runStore(t, s)
		suite.MustSucceed(t, client.SendBatch(t.Context(), copies))
		cancelled := map[int]bool{}
		for i := 0; i < n; i += 3 {
			err := s.Cancel(t.Context(), schedule.NoTx, fmt.Sprint(i))
			if cancelled[i] = err == nil; errors.Is(err, schedule.ErrStatus) {
				t.Logf("the task was done before it could be cancelled: %v", err)
			} else {
				suite.MustSucceed(t, err)
			}
		}
		want := func(subscriber int) (count int64) {
			for i := range n {
				if !cancelled[i] && (subscriber != 1 || i%7 != 0) {
					count++
				}
			}
			return count
		}
		effects := func(what, queue string) int64 {
			return db.queryInt(t, "SELECT COUNT("+what+") FROM effects WHERE queue = ?", queue)
		}
		suite.Eventually(t, "every subscriber has all its effects", func() bool {
			for i, queue := range subscribers {
				if effects("DISTINCT id", queue) < want(i) {
					return false
				}
			}
			return true
		})
		// The duplicates have no effect, and are settled too.
		suite.Eventually(t, "every message is settled", func() bool {
			for _, queue := range subscribers {
				if info, err := client.QueueInfo(t.Context(), queue); err != nil || info.Ready > 0 {
					return false
				}
			}
			return true
		})
		for i, queue := range subscribers {
			if all, distinct := effects("*", queue), effects("DISTINCT id", queue); all != want(i) || distinct != want(i) {
				t.Errorf("subscriber %d has %d effects from %d tasks, want %d, one per task", i, all, distinct, want(i))
			}
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM effects WHERE id IN (SELECT id FROM rabbitdelay_tasks WHERE status = 'cancelled')"); n != 0 {
			t.Errorf("cancelled tasks have %d effects, want 0", n)
		}
	})
}

// bindAll declares a fanout exchange for the duration of the test and binds the queues to it.
func bindAll(t *testing.T, exchange string, queues []string) {
	t.Helper()
	conn, err := amqp.Dial(broker.Shared(t, broker.Options{}).URL())
	suite.MustSucceed(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	suite.MustSucceed(t, err)
	suite.MustSucceed(t, ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false, nil))
	t.Cleanup(func() {
		if err := ch.ExchangeDelete(exchange, false, false); err != nil {
			t.Error(err)
		}
	})
	for _, queue := range queues {
		suite.Eventually(t, "queue "+queue+" exists and is bound", func() bool {
			own, err := conn.Channel()
			suite.MustSucceed(t, err)
			defer func() { _ = own.Close() }()
			return own.QueueBind(queue, "", exchange, false, nil) == nil
		})
	}
}

// Two deliveries for each of three subscribers compete with the cancellation: either each
// subscriber has the effect once, or none has it.
func TestScheduleConcurrentSubscribers(t *testing.T) {
	t.Parallel()
	for level, rounds := range map[sql.IsolationLevel]int{sql.LevelDefault: 60, sql.LevelRepeatableRead: 10, sql.LevelSerializable: 10} {
		t.Run(level.String(), func(t *testing.T) { testConcurrentSubscribers(t, level, rounds) })
	}
}

func testConcurrentSubscribers(t *testing.T, level sql.IsolationLevel, rounds int) {
	const subscribers, deliveries = 3, 2
	eachDriver(t, func(t *testing.T, db businessDB) {
		if db.dialect == schedule.SQLite && level == sql.LevelRepeatableRead {
			t.Skip("skipped: SQLite has no such level")
		}
		s := newStore(t, db, nil, schedule.Config{})
		past := time.Now().Add(-time.Second)
		db.mustExec(t, "CREATE TABLE effects (queue VARCHAR(255) NOT NULL, id VARCHAR(255) NOT NULL)")
		var skips atomic.Int32
		handle := db.taskHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
			_, err := tx.ExecContext(ctx, db.bind("INSERT INTO effects (queue, id) VALUES (?, ?)"), d.Queue, d.ID)
			return err
		}, schedule.OnSkip(func(context.Context, *amqpx.Delivery, schedule.SkipReason) { skips.Add(1) }),
			schedule.WithTxOptions(&sql.TxOptions{Isolation: level}))
		for round := range rounds {
			id := fmt.Sprint(round)
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Exchange: "events", DeliverAt: past}))
			skips.Store(0)
			cancelled := false
			for i, err := range together(1+subscribers*deliveries, func(i int) error {
				if i == 0 {
					for {
						err := s.Cancel(t.Context(), schedule.NoTx, id)
						if err == nil || !strings.Contains(err.Error(), "Deadlock") { // a deadlock with a handler is possible, because its isolation level differs
							return err
						}
					}
				}
				n := i % subscribers
				return handle(t.Context(), &amqpx.Delivery{
					ID: id, Queue: fmt.Sprint("q", n), Exchange: "events", Version: 1, Attempt: 1, MaxAttempts: 3,
				})
			}) {
				switch {
				case i == 0 && err == nil:
					cancelled = true
				case i == 0 && !errors.Is(err, schedule.ErrStatus), i > 0 && err != nil:
					t.Fatalf("round %d, call %d: got error %v, want nil, or schedule.ErrStatus from Cancel (call 0)", round, i, err)
				}
			}
			want := int64(subscribers)
			if cancelled {
				want = 0
			}
			all := db.queryInt(t, "SELECT COUNT(*) FROM effects WHERE id = ?", id)
			distinct := db.queryInt(t, "SELECT COUNT(DISTINCT queue) FROM effects WHERE id = ?", id)
			if all != want || distinct != want {
				t.Fatalf("round %d (cancelled: %t): %d effects in %d queues, want %d, one per queue", round, cancelled, all, distinct, want)
			}
			if got := skips.Load(); int64(got) != subscribers*deliveries-want {
				t.Fatalf("round %d (cancelled: %t): %d skips, want %d", round, cancelled, got, subscribers*deliveries-want)
			}
		}
	})
}

// A subscriber whose handler hangs does not delay the other subscribers of the same task. The task is done before the
// hanging handler returns, and the handler still has its effect, unless the task was cancelled in the meantime.
func TestSubscribersDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		db.mustExec(t, "CREATE TABLE effects (queue VARCHAR(255) NOT NULL, id VARCHAR(255) NOT NULL)")
		past := time.Now().Add(-time.Second).Truncate(time.Millisecond)
		effect := func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
			_, err := tx.ExecContext(ctx, db.bind("INSERT INTO effects (queue, id) VALUES (?, ?)"), d.Queue, d.ID)
			return err
		}
		var skipped atomic.Value
		onSkip := schedule.OnSkip(func(_ context.Context, _ *amqpx.Delivery, reason schedule.SkipReason) { skipped.Store(reason) })
		hanging, goOn := make(chan struct{}), make(chan struct{})
		hangs := func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
			if err := effect(ctx, tx, d); err != nil {
				return err
			}
			hanging <- struct{}{}
			<-goOn
			return nil
		}
		to := func(queue, id string) *amqpx.Delivery {
			return &amqpx.Delivery{ID: id, Queue: queue, Exchange: "events", Version: 1, Attempt: 1, MaxAttempts: 3, DueAt: past}
		}
		for name, slow := range map[string]amqpx.Handler{
			"Handler": db.taskHandler(hangs, onSkip),
			"LeaseHandler": db.leaseHandler(func(context.Context, *amqpx.Delivery, string) (txFunc, error) {
				return hangs, nil
			}, onSkip),
		} {
			done, cancelled := name+" done", name+" cancelled"
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: done, Exchange: "events", DeliverAt: past}))
			ended := make(chan error, 1)
			go func() { ended <- slow(t.Context(), to("slow", done)) }()
			<-hanging
			ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
			for _, queue := range []string{"mail", "audit"} {
				if err := db.taskHandler(effect)(ctx, to(queue, done)); err != nil {
					t.Errorf("subscriber %s while %s does not answer: got %v, want no error", queue, name, err)
				}
			}
			cancel()
			if got := taskOf(t, s, done); got.Status != schedule.StatusDone {
				t.Errorf("task %s is %s, want done", done, got.Status)
			}
			goOn <- struct{}{}
			suite.MustSucceed(t, <-ended)
			if n := db.queryInt(t, "SELECT COUNT(*) FROM effects WHERE id = ?", done); n != 3 {
				t.Errorf("%s: %d effects, want 3", done, n)
			}
			if name != "Handler" || t.Failed() {
				continue // a task with a lease cannot be cancelled
			}
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: cancelled, Exchange: "events", DeliverAt: past}))
			go func() { ended <- slow(t.Context(), to("slow", cancelled)) }()
			<-hanging
			suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, cancelled))
			goOn <- struct{}{}
			suite.MustSucceed(t, <-ended)
			if n := db.queryInt(t, "SELECT COUNT(*) FROM effects WHERE id = ?", cancelled); n != 0 || skipped.Load() != schedule.SkipCancelled {
				t.Errorf("task %s: got %d effects and the skip reason %v, want 0 and schedule.SkipCancelled", cancelled, n, skipped.Load())
			}
		}
	}
	t.Run("postgres", func(t *testing.T) { test(t, openServer(t, idempotency.PostgreSQL, database.PostgreSQL)) })
	t.Run("pgx", func(t *testing.T) { test(t, openPgx(t)) })
	eachMySQL(t, test)
}
