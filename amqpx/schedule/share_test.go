package schedule

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
)

// Tasks with large bodies are sent in small batches, without pauses between the batches.
func TestClaimsAreBoundedByBytes(t *testing.T) {
	var largest, bodies int
	r := recorder{before: func(_ context.Context, msgs []amqpx.Message) error {
		size := 0
		for _, m := range msgs {
			size += len(m.Body)
		}
		if len(msgs) > 1 && size > 100<<10 {
			t.Errorf("a batch has %d tasks with %d bytes, want at most %d bytes or a single task", len(msgs), size, 100<<10)
		}
		largest, bodies = max(largest, size), bodies+len(msgs)
		return nil
	}}
	bubble(t, &r, Config{batchBytes: 100 << 10, Workers: 1}, func(t *testing.T, s *Store, _ *sql.DB) {
		tasks := make([]Task, 100)
		for i := range tasks {
			tasks[i] = near(fmt.Sprint(i))
			tasks[i].Body = make([]byte, 10<<10)
		}
		tasks[50].Body = make([]byte, 300<<10)
		check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
		<-time.After(relay.FirstLook)
		synctest.Wait()
		if largest != 300<<10 || bodies != len(tasks) {
			t.Errorf("%d tasks were sent, and the largest batch has %d bytes, want %d and %d", bodies, largest, len(tasks), 300<<10)
		}
		for _, c := range r.receipts() {
			if c.m.ID == "50" && len(c.m.Body) != 300<<10 {
				t.Errorf("the largest task was sent with %d bytes, want %d", len(c.m.Body), 300<<10)
			}
		}
	})
}

// A lane (the tasks for one destination) with a backlog gets only the part of a batch that the other lanes do not need.
// If there are more lanes than rows in a batch, they take turns.
func TestClaimsAreShared(t *testing.T) {
	s, db := openStore(t, &recorder{}, Config{Batch: 10})
	defer func() { _ = db.Close() }()
	now := time.Now()
	add := func(queue string, n int, at time.Time) {
		for i := range n {
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint(queue, i), Queue: queue, DeliverAt: at}))
		}
	}
	take := func() map[string]int {
		got := map[string]int{}
		list, err := s.relay.Take(t.Context())
		check(t, err)
		for _, c := range list {
			got[c.Queue]++
		}
		return got
	}
	add("long", 40, now.Add(-time.Hour))
	add("short", 2, now)
	check(t, s.Schedule(t.Context(), NoTx, Task{ID: "e", Exchange: "events", RoutingKey: "a.b", DeliverAt: now}))
	if got := take(); got["long"] != 7 || got["short"] != 2 || got[""] != 1 {
		t.Errorf(`the relay claimed %v by queue, want 7 from "long", 2 from "short" and 1 for the exchange`, got)
	}
	for i := range 15 {
		add(fmt.Sprint("many-", i), 2, now)
	}
	first, second := take(), take()
	if len(first) != 10 || len(second) != 10 {
		t.Errorf("the relay claimed from %d and %d lanes, want 10 and 10", len(first), len(second))
	}
	for i := range 15 {
		if q := fmt.Sprint("many-", i); first[q]+second[q] == 0 {
			t.Errorf("the relay claimed 0 tasks from queue %s, want at least 1", q)
		}
	}
}
