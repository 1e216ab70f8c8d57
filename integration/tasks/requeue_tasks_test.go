package tasks_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// Dead letters of tasks are requeued through their rows, several at a time, and status and trace
// report what happened to them, on each database.
func TestCLIRequeueOfTasks(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		suite.MustSucceed(t, schedule.Migrate(t.Context(), db.DB))
		suite.MustSucceed(t, idempotency.Migrate(t.Context(), db.DB))
		srv := amqptest.NewServer(amqptest.Options{})
		t.Cleanup(srv.Close)
		url, err := srv.Listen()
		suite.MustSucceed(t, err)
		do := func(args ...string) suite.Ran {
			return suite.RunCLI(t.Context(), append(args, "--url", url, "--db", cliURL(t, db))...)
		}

		const each = 5
		store, err := schedule.New(db.DB, nil, schedule.Config{Dialect: db.dialect})
		suite.MustSucceed(t, err)
		conn, err := srv.Connect()
		suite.MustSucceed(t, err)
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		suite.MustSucceed(t, err)
		for _, q := range []string{"q", "q.dead"} {
			_, err := ch.QueueDeclare(q, true, false, false, false, suite.QuorumQueue)
			suite.MustSucceed(t, err)
		}
		suite.MustSucceed(t, ch.Confirm(false))
		for _, status := range []schedule.Status{schedule.StatusPending, schedule.StatusFailed, schedule.StatusDone, schedule.StatusCancelled, "gone"} {
			for i := range each {
				id := fmt.Sprintf("%s-%d", status, i)
				if status != "gone" {
					suite.MustSucceed(t, store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: "q", DeliverAt: time.Now().Add(time.Hour)}))
				}
				if status != "gone" && status != schedule.StatusPending {
					db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = ?, finished_at = ? WHERE id = ?", string(status), time.Now().UnixMilli(), id)
				}
				sure, err := ch.PublishWithDeferredConfirm("", "q.dead", true, false, amqp.Publishing{MessageId: id, Headers: amqp.Table{
					amqpx.HeaderReason: inspect.ReasonAttempts, amqpx.HeaderQueue: "q", amqpx.HeaderError: "timeout", amqpx.HeaderVersion: int64(1),
				}})
				suite.MustSucceed(t, err)
				if !sure.Wait() {
					t.Fatal("the broker did not confirm the message")
				}
			}
		}
		r := do("requeue", "--queue", "q.dead", "--yes", "--json", "--in-flight", "4", "--rate", "1000")
		var rep inspect.RequeueReport
		suite.MustSucceed(t, json.Unmarshal([]byte(r.Stdout), &rep))
		if r.Code != 2 {
			t.Errorf("exit code %d, want 2: %s", r.Code, r)
		}
		for _, c := range []struct {
			outcome   string
			got, want int
		}{
			{"sent", rep.Sent, each},
			{"revived", rep.Revived, each},
			{"removed", rep.Removed, 2 * each},
			{"stayed", rep.Stayed, each},
		} {
			if c.got != c.want {
				t.Errorf("requeue: got %s = %d, want %d: %s", c.outcome, c.got, c.want, r)
			}
		}
		if q, _ := srv.Queue("q"); q.Ready != each {
			t.Errorf("queue q has %d ready messages, want %d", q.Ready, each)
		}
		if q, _ := srv.Queue("q.dead"); q.Ready != each || q.Unacked != 0 {
			t.Errorf("%d dead letters are ready and %d are unacknowledged, want %d and 0", q.Ready, q.Unacked, each)
		}
		once := idempotency.Handler(db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }, idempotency.WithDialect(db.dialect))
		suite.MustSucceed(t, once(t.Context(), &amqpx.Delivery{ID: "order-7", Queue: "q", Attempt: 1}))
		for id, want := range map[string]string{
			"failed-0": "it was due", "done-0": "it is done", "cancelled-0": "it was cancelled",
			"pending-0": "due", "order-7": "its effect in q was committed", "gone-0": "dead letter",
		} {
			if r := do("trace", id, "--queue", "q.dead", "--scope", "q"); !strings.Contains(r.Stdout, want) {
				t.Errorf("trace %s: got %s, want Stdout containing %q", id, r, want)
			}
		}
		r = do("status")
		for _, want := range []string{"q  pending  10", "no relay runs on this database"} {
			if !strings.Contains(strings.Join(strings.Fields(r.Stdout), " "), strings.Join(strings.Fields(want), " ")) {
				t.Errorf("status: got %s, want Stdout containing %q", r, want)
			}
		}
	})
}
