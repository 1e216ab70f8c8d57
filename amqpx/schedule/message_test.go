package schedule

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

type traceKey struct{}

// A task's message has the task's properties, and the headers that BeforeSchedule added from the caller's context. The
// caller's own map is unchanged.
func TestTasksAreMessages(t *testing.T) {
	sender := &recorder{}
	hooks := Hooks{BeforeSchedule: func(ctx context.Context, t *Task) {
		if t.Headers == nil {
			t.Headers = map[string]string{}
		}
		t.Headers["traceparent"], _ = ctx.Value(traceKey{}).(string)
	}}
	bubble(t, sender, Config{Hooks: hooks}, func(t *testing.T, s *Store, _ *sql.DB) {
		ctx := context.WithValue(t.Context(), traceKey{}, "00-1-2-01")
		headers := map[string]string{"tenant": "blue"}
		task := near("a")
		task.Type, task.CorrelationID, task.Priority, task.ContentType, task.Headers = "order.expired", "req-7", 3, "application/json", headers
		check(t, s.Schedule(ctx, NoTx, task))
		check(t, s.Schedule(ctx, NoTx, near("b")))
		<-time.After(2 * time.Second)
		got := map[string]amqpx.Message{}
		for _, r := range sender.receipts() {
			got[r.m.ID] = r.m
		}
		a, b := got["a"], got["b"]
		if a.Type != "order.expired" || a.CorrelationID != "req-7" || a.Priority != 3 || a.ContentType != "application/json" {
			t.Errorf(`the message was sent as %+v, want Type = "order.expired", CorrelationID = "req-7", Priority = 3 and ContentType = "application/json"`, a)
		}
		if a.Headers["tenant"] != "blue" || a.Headers["traceparent"] != "00-1-2-01" || b.Headers["traceparent"] != "00-1-2-01" {
			t.Errorf(`the messages have the headers %v and %v, want tenant = "blue" in the first, and traceparent = "00-1-2-01" in both`,
				a.Headers, b.Headers)
		}
		if len(headers) != 1 {
			t.Errorf("after Schedule, the caller's headers are %v, want only tenant, as before", headers)
		}
	})
}
