package tasks_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// hostile returns messages that no handler with a database can process, by body.
func hostile() map[string]amqp.Publishing {
	good := amqp.Table{amqpx.HeaderVersion: int64(1)}
	return map[string]amqp.Publishing{
		"no id":            {Headers: good},
		"an id with NUL":   {MessageId: "a\x00b", Headers: good},
		"an id of no text": {MessageId: "a\xffb", Headers: good},
		"no version":       {MessageId: "task"},
		"version 0":        {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: int64(0)}},
		"version -1":       {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: int64(-1)}},
		"version as text":  {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: "1"}},
		"version as float": {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: 1.5}},
		"version as list":  {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: []any{int64(1)}}},
		"version as table": {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: amqp.Table{"v": int64(1)}}},
		"version as time":  {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: time.Unix(1, 0)}},
	}
}

// publishRaw publishes messages directly to a queue, as a program without this library would.
func publishRaw(t *testing.T, queue string, messages map[string]amqp.Publishing) {
	t.Helper()
	ch := suite.RawChannel(t)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for body, p := range messages {
		p.Body = []byte(body)
		confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, false, false, p)
		if err != nil || !confirm.Wait() {
			t.Fatalf("publishing %s: got error %v, want nil and a confirm", body, err)
		}
	}
}

// rejectedAll fails the test unless each message is a dead letter that was rejected at its first attempt for the given
// reason.
func rejectedAll(t *testing.T, queue string, messages map[string]amqp.Publishing, reason string) {
	t.Helper()
	for range len(messages) {
		d := suite.RawGet(t, queue+".dead")
		p, ok := messages[string(d.Body)]
		text, _ := d.Headers[amqpx.HeaderError].(string)
		// A message without an id is assigned one when it is dead-lettered.
		if !ok || p.MessageId != "" && d.MessageId != p.MessageId || d.Headers[amqpx.HeaderReason] != inspect.ReasonRejected || !strings.Contains(text, reason) {
			t.Errorf("dead letter %q: got id %q and headers %v, want id %q (any id if empty) and a rejection with the reason %q", d.Body, d.MessageId, d.Headers, p.MessageId, reason)
		}
		if attempts, _ := d.Headers[amqpx.HeaderAttempts].([]any); len(attempts) != 1 {
			t.Errorf("dead letter %q: got attempts %v, want one", d.Body, d.Headers[amqpx.HeaderAttempts])
		}
		delete(messages, string(d.Body))
	}
}

// With every database, a message that belongs to no task is dead-lettered immediately, with the
// reason, and the consumer continues.
func TestHostileTasks(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db businessDB) {
		if err := schedule.Migrate(t.Context(), db.DB); err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{})
		q := suite.NewQueue(t)
		tasks, err := schedule.New(db.DB, c, schedule.Config{})
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("'; DROP TABLE rabbitdelay_tasks; -- %d", time.Now().UnixNano())
		done := make(chan string, 10)
		suite.Consume(t, c, q, schedule.Handler(db.DB, func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
			done <- d.ID
			return nil
		}), amqpx.WithRetry(topology.Retry{Backoff: time.Millisecond}))
		suite.Send(t, c, amqpx.Message{ID: "declares the queues", Queue: q})
		suite.RawGet(t, q+".dead")

		messages := hostile()
		publishRaw(t, q, messages)
		rejectedAll(t, q, messages, schedule.ErrNotTask.Error())

		if err := tasks.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: q, DeliverAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
		// An id that looks like SQL belongs to no task and is not run as a statement.
		publishRaw(t, q, map[string]amqp.Publishing{"missing": {MessageId: "x' OR '1'='1", Headers: amqp.Table{amqpx.HeaderVersion: int64(1)}}})
		publishRaw(t, q, map[string]amqp.Publishing{"good": {MessageId: id, Headers: amqp.Table{amqpx.HeaderVersion: int64(1)}}})
		if got := <-done; got != id {
			t.Errorf("handled %q, want %q", got, id)
		}
		suite.Eventually(t, "the commit of "+id, func() bool { // the transaction commits after the handler has returned
			task, err := tasks.Get(t.Context(), schedule.NoTx, id)
			if err != nil {
				t.Fatal(err)
			}
			return task.Status == schedule.StatusDone
		})
	})
}

// Idempotent handlers reject hostile messages too. They need an id, and no version.
func TestHostileIDs(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db businessDB) {
		if err := idempotency.Migrate(t.Context(), db.DB); err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{})
		q := suite.NewQueue(t)
		done := make(chan string, 20)
		suite.Consume(t, c, q, idempotency.Handler(db.DB, func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
			done <- string(d.Body)
			return nil
		}), amqpx.WithRetry(topology.Retry{Backoff: time.Millisecond}))
		suite.Send(t, c, amqpx.Message{ID: "declares the queues", Queue: q})
		if got := <-done; got != "" {
			t.Fatalf(`handled %q, want ""`, got)
		}

		bad, good := map[string]amqp.Publishing{}, map[string]amqp.Publishing{}
		for body, p := range hostile() {
			if strings.Contains(body, "id") {
				p.Headers = nil // a message with a version belongs to a task
				bad[body] = p
			} else {
				p.MessageId = fmt.Sprintf("%s'; DROP TABLE rabbitdelay_processed; -- %d", body, time.Now().UnixNano())
				good[body] = p
			}
		}
		publishRaw(t, q, bad)
		rejectedAll(t, q, bad, idempotency.ErrKey.Error())
		task := map[string]amqp.Publishing{"a task": {MessageId: "task", Headers: amqp.Table{amqpx.HeaderVersion: int64(1)}}}
		publishRaw(t, q, task)
		rejectedAll(t, q, task, idempotency.ErrIsTask.Error())
		publishRaw(t, q, good)
		suite.Eventually(t, "the good messages are handled", func() bool {
			for len(done) > 0 {
				delete(good, <-done)
			}
			return len(good) == 0
		})
	})
}
