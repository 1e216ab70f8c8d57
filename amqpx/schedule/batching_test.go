package schedule

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// pollingStore runs test with a running store that polls as it does outside of tests. Time is virtual, but the store does
// not know that.
func pollingStore(t *testing.T, sender Sender, cfg Config, test func(t *testing.T, s *Store, db *sql.DB)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, sender, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(10 * time.Second)
		test(t, s, db)
		cancel()
		check(t, <-done)
		check(t, db.Close())
	})
}

func within(id string, d time.Duration) Task {
	return Task{ID: id, Queue: "q", DeliverAt: time.Now().Add(d)}
}

// Tasks that are written one at a time and become due within seconds are sent in batches, in time.
func TestTasksDueSoonShareBatches(t *testing.T) {
	r, batches := &recorder{}, 0
	r.before = func(context.Context, []amqpx.Message) error { batches++; return nil }
	pollingStore(t, r, Config{}, func(t *testing.T, s *Store, _ *sql.DB) {
		const tasks = 400
		for i := range tasks {
			check(t, s.Schedule(t.Context(), NoTx, within(fmt.Sprint(i), 2*time.Second)))
			<-time.After(10 * time.Millisecond)
		}
		<-time.After(2 * time.Second)
		got := r.receipts()
		if len(got) != tasks || batches > 20 {
			t.Errorf("%d messages were sent in %d batches, want %d in at most 20, two to four a second", len(got), batches, tasks)
		}
		for _, x := range got {
			if left := x.m.DeliverAt.Sub(x.at); left < 400*time.Millisecond || left > 1100*time.Millisecond {
				t.Errorf("task %s was sent %v before it was due, want 400ms to 1.1s", x.m.ID, left)
			}
		}
	})
}

// While other tasks wait to share a batch, a task that is due is sent immediately, and a task that is due much later at
// the next regular poll.
func TestOtherTasksDoNotWaitForABatch(t *testing.T) {
	var r recorder
	pollingStore(t, &r, Config{}, func(t *testing.T, s *Store, _ *sql.DB) {
		for i := range 100 {
			check(t, s.Schedule(t.Context(), NoTx, within(fmt.Sprint("soon", i), 2*time.Second)))
			check(t, s.Schedule(t.Context(), NoTx, within(fmt.Sprint("now", i), 0)))
			check(t, s.Schedule(t.Context(), NoTx, within(fmt.Sprint("later", i), time.Hour)))
			<-time.After(70 * time.Millisecond)
		}
		<-time.After(2 * time.Second)
		written := map[string]time.Time{}
		for _, x := range r.receipts() {
			written[x.m.ID] = x.at
		}
		for i := range 100 {
			at := func(kind string) time.Duration {
				return written[fmt.Sprint(kind, i)].Sub(written["now0"]) - time.Duration(i)*70*time.Millisecond
			}
			if now := at("now"); now > 20*time.Millisecond {
				t.Errorf("task now%d was sent after %v, want at most 20ms", i, now)
			}
			if later := at("later"); later < -20*time.Millisecond || later > 1020*time.Millisecond {
				t.Errorf("task later%d was sent after %v, want at most 1.02s, the interval of regular polls", i, later)
			}
		}
	})
}

// While the relay cannot keep up, tasks that are due much later do not take the place of tasks that are due.
func TestLaterTasksWaitForOverdueTasks(t *testing.T) {
	var r recorder
	r.before = func(context.Context, []amqpx.Message) error { <-time.After(100 * time.Millisecond); return nil }
	pollingStore(t, &r, Config{}, func(t *testing.T, s *Store, _ *sql.DB) {
		const tasks = 1500
		var list []Task
		for i := range tasks {
			later := within(fmt.Sprint("later", i), time.Hour)
			later.Queue = "other"
			list = append(list, later, within(fmt.Sprint("now", i), 0))
		}
		check(t, s.ScheduleBatch(t.Context(), NoTx, list))
		<-time.After(3 * time.Second)
		got := r.receipts()
		if len(got) != 2*tasks {
			t.Fatalf("%d messages were sent, want %d", len(got), 2*tasks)
		}
		for i, x := range got[:tasks] {
			if x.m.Queue == "other" {
				t.Fatalf("message %d is task %s, want the tasks that are due before all others", i, x.m.ID)
			}
		}
	})
}

// With a short horizon, a task is sent when the horizon reaches it, and not at the next poll after that, which might be
// a second too late.
func TestShortHorizon(t *testing.T) {
	for _, horizon := range []time.Duration{10 * time.Millisecond, 400 * time.Millisecond} {
		var r recorder
		pollingStore(t, &r, Config{Horizon: horizon}, func(t *testing.T, s *Store, _ *sql.DB) {
			for i := range 60 {
				check(t, s.Schedule(t.Context(), NoTx, within(fmt.Sprint(i), 5*time.Second+time.Duration(i)*37*time.Millisecond)))
			}
			<-time.After(8 * time.Second)
			got := r.receipts()
			if len(got) != 60 {
				t.Fatalf("%d messages were sent, want 60", len(got))
			}
			for _, x := range got {
				if left := x.m.DeliverAt.Sub(x.at); left < 0 || left > horizon {
					t.Errorf("horizon %v: task %s was sent %v before it was due, want 0 to %v", horizon, x.m.ID, left, horizon)
				}
			}
		})
	}
}

// If so many tasks are due soon that they could not all be sent in the last half second, the relay begins earlier.
func TestBurstIsSentEarlier(t *testing.T) {
	for tasks, early := range map[int]bool{4500: false, 6000: true} {
		var r recorder
		pollingStore(t, &r, Config{}, func(t *testing.T, s *Store, _ *sql.DB) {
			list := make([]Task, tasks)
			for i := range list {
				list[i] = within(fmt.Sprint(i), 4*time.Second)
			}
			check(t, s.ScheduleBatch(t.Context(), NoTx, list))
			<-time.After(5 * time.Second)
			got := r.receipts()
			if len(got) != tasks {
				t.Fatalf("%d messages were sent, want %d", len(got), tasks)
			}
			if left := got[0].m.DeliverAt.Sub(got[0].at); left > 1100*time.Millisecond != early {
				t.Errorf("of %d tasks, the first was sent %v before it was due, want more than 1.1s: %t", tasks, left, early)
			}
		})
	}
}
