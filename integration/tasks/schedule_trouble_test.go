package tasks_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// A destination that accepts no messages does not delay the others. The rows of its tasks contain the reason, and the
// tasks have their effects when the destination accepts messages again.
func TestScheduleDuringDestinationFailures(t *testing.T) {
	t.Parallel()
	const each, goodQueues = 30, 4
	lines, err := broker.Versions(t.Context())
	suite.MustSucceed(t, err)
	for _, line := range tier.Sample(t.Name(), lines) {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			b := broker.Shared(t, broker.Options{Version: line})
			url := b.URL()
			owner, err := amqp.Dial(url)
			suite.MustSucceed(t, err)
			defer func() { _ = owner.Close() }()
			theirs, err := owner.Channel()
			suite.MustSucceed(t, err)
			conn, err := amqp.Dial(url)
			suite.MustSucceed(t, err)
			defer func() { _ = conn.Close() }()
			ch, err := conn.Channel()
			suite.MustSucceed(t, err)

			name := fmt.Sprintf("trouble.%d", time.Now().UnixNano())
			full, exclusive, missing, bound, silent := name+".full", name+".exclusive", name+".missing", name+".bound", name+".silent"
			_, err = ch.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
			suite.MustSucceed(t, err)
			suite.MustSucceed(t, ch.PublishWithContext(t.Context(), "", full, false, false, amqp.Publishing{}))
			_, err = theirs.QueueDeclare(exclusive, false, false, true, false, nil)
			suite.MustSucceed(t, err)
			_, err = ch.QueueDeclare(silent, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			suite.MustSucceed(t, err)
			member(t, b, "suspend", silent)
			good := make([]string, goodQueues)
			for i := range good {
				good[i] = fmt.Sprint(name, ".good-", i)
			}
			defer func() {
				_ = ch.ExchangeDelete(missing, false, false)
				for _, q := range slices.Concat(good, []string{full, exclusive, bound, silent}) {
					for _, q := range []string{q, q + ".dead"} {
						_, _ = ch.QueueDelete(q, false, false, false)
					}
				}
			}()

			db := openSQLite(t)
			db.mustExec(t, "CREATE TABLE effects (id VARCHAR(255) NOT NULL)")
			client := suite.OpenClient(t, amqpx.Config{URL: url})
			s := newStore(t, db, client, schedule.Config{MaxSendFailures: 1000})
			runStore(t, s)
			handle := schedule.Handler(db.DB, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES (?)", d.ID)
				return err
			})
			for _, q := range good {
				suite.Consume(t, client, q, handle)
			}
			effects := func(kind string) int64 {
				return db.queryInt(t, "SELECT COUNT(DISTINCT id) FROM effects WHERE id LIKE ?", kind+"-%")
			}
			t.Cleanup(func() {
				if t.Failed() {
					logPending(t, db)
				}
			})
			// The task for the queue that does not answer is sent first. A RabbitMQ channel waits up to half a minute for
			// the leader of a quorum queue that it has not used yet. Messages published on that channel afterwards wait
			// too, such as the first message to another queue. The tasks are already due, so they are published directly
			// to their queues, without a delay queue.
			now := time.Now()
			var tasks []schedule.Task
			for i := range each {
				tasks = append(tasks, schedule.Task{ID: fmt.Sprint("silent-", i), Queue: silent, DeliverAt: now})
			}
			suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
			suite.Eventually(t, "the client reports the silent queue as stuck", func() bool { return len(client.Stats().Stuck) > 0 })
			now = time.Now()
			for i := range each {
				tasks = append(tasks,
					schedule.Task{ID: fmt.Sprint("full-", i), Queue: full, DeliverAt: now},
					schedule.Task{ID: fmt.Sprint("exclusive-", i), Queue: exclusive, DeliverAt: now},
					schedule.Task{ID: fmt.Sprint("missing-", i), Exchange: missing, DeliverAt: now})
				for n, q := range good {
					tasks = append(tasks, schedule.Task{ID: fmt.Sprint("good-", n, "-", i), Queue: q, DeliverAt: now.Add(time.Duration(i) * 400 * time.Millisecond)})
				}
			}
			suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks[each:]))
			// If the message of a task is lost, the task is sent again after two minutes, and then after four.
			suite.Within(t, 10*time.Minute, "the tasks of the good queues have their effects", func() bool { return effects("good") == goodQueues*each })
			for kind, reason := range map[string]string{"full": "refused by the broker", "exclusive": "exclusive", "missing": missing, "silent": "confirm"} {
				id := kind + "-0"
				// The broker may not have answered the first attempt in time, so LastError can contain another reason at first.
				suite.Eventually(t, "LastError of "+id+" contains "+reason, func() bool { return strings.Contains(taskOf(t, s, id).LastError, reason) })
				if got := taskOf(t, s, id); got.Status != schedule.StatusPending || got.Sends != 0 {
					t.Errorf("task %s: got %+v, want a pending task that was never sent", id, got)
				}
			}

			_, err = ch.QueueDelete(full, false, false, false)
			suite.MustSucceed(t, err)
			suite.MustSucceed(t, owner.Close())
			member(t, b, "resume", silent)
			suite.MustSucceed(t, ch.ExchangeDeclare(missing, amqp.ExchangeFanout, true, false, false, false, nil))
			_, err = ch.QueueDeclare(bound, true, false, false, false, nil)
			suite.MustSucceed(t, err)
			suite.MustSucceed(t, ch.QueueBind(bound, "", missing, false, nil))
			for _, q := range []string{full, exclusive, bound, silent} {
				suite.Consume(t, client, q, handle)
			}
			for _, kind := range []string{"full", "exclusive", "missing", "silent"} {
				// The longest pause between two attempts is one minute.
				suite.Within(t, 5*time.Minute, "the tasks of the "+kind+" queue have their effects", func() bool { return effects(kind) == each })
			}
			if n := db.queryInt(t, "SELECT COUNT(*) FROM effects"); n != int64(len(tasks)) {
				t.Errorf("%d effects, want %d, one per task", n, len(tasks))
			}
		})
	}
}

// logPending logs up to 40 tasks without an effect.
func logPending(t *testing.T, db businessDB) {
	t.Helper()
	rows, err := db.QueryContext(context.Background(),
		"SELECT id, status, sends, attempts, COALESCE(last_error, '') FROM rabbitdelay_tasks "+
			"WHERE id NOT IN (SELECT id FROM effects) ORDER BY id LIKE 'good-%' DESC, id LIMIT 40")
	if err != nil {
		t.Log(err)
		return
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, status, reason string
		var sends, attempts int
		if err := rows.Scan(&id, &status, &sends, &attempts, &reason); err != nil {
			t.Log(err)
			return
		}
		t.Logf("%s is %s after %d sends and %d attempts: %s", id, status, sends, attempts, reason)
	}
	t.Log(rows.Err())
}

// member suspends or resumes the process of a quorum queue. While it is suspended, the queue
// neither confirms nor refuses messages, like a queue that has lost its majority.
func member(t *testing.T, b *broker.Broker, how, queue string) {
	t.Helper()
	expr := fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<%q>>)), sys:%s(amqqueue:get_pid(Q)).`, queue, how)
	out, err := b.Ctl(t.Context(), "eval", expr)
	if err != nil || strings.TrimSpace(out) != "ok" {
		t.Fatalf(`%s: got %s, %v, want no error and "ok"`, how, out, err)
	}
}
