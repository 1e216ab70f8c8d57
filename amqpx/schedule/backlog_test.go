package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestBacklog(t *testing.T) {
	store, db := openStore(t, &recorder{}, Config{Horizon: time.Hour})
	defer func() { _ = db.Close() }()
	now := time.Now().Truncate(time.Millisecond)
	store.goBy(func() time.Time { return now })
	horizons := []time.Duration{time.Minute, time.Hour}
	read := func(most int64) Backlog {
		t.Helper()
		b, err := store.Backlog(t.Context(), horizons, most)
		check(t, err)
		return b
	}
	if b := read(10); !b.At.Equal(now) || !b.Oldest.IsZero() || b.Overdue+b.Unsent != 0 || !slices.Equal(b.Within, []int64{0, 0, 0}) {
		t.Fatalf("Backlog of an empty table: got %+v, want At = %v and all numbers 0", b, now)
	}
	for i, in := range []time.Duration{-time.Second, time.Second, 2 * time.Second, 2 * time.Minute, 48 * time.Hour} {
		check(t, store.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint(i), Queue: "q" + fmt.Sprint(i%2), DeliverAt: now.Add(in)}))
	}
	if b := read(10); b.Overdue != 1 || !b.Oldest.Equal(now.Add(-time.Second)) || b.Unsent != 2 || !slices.Equal(b.Within, []int64{2, 1, 1}) {
		t.Errorf("before the relay has run: got %+v, want Overdue = 1, Oldest = %v, Unsent = 2, without those due within 5s, and [2 1 1]", b, now.Add(-time.Second))
	}
	if b := read(1); b.Overdue != 1 || b.Unsent != 1 || !slices.Equal(b.Within, []int64{1, 1, 1}) {
		t.Errorf("counts up to 1: got %+v, want Overdue = 1, Unsent = 1 and [1 1 1]", b)
	}
	if _, sent, err := store.relay.Step(t.Context()); err != nil || sent != 4 {
		t.Fatalf("Step: sent %d tasks, error %v, want 4 and no error", sent, err)
	}
	now = now.Add(10 * time.Second)
	if b := read(10); b.Overdue != 3 || b.Unsent != 0 || !slices.Equal(b.Within, []int64{0, 1, 1}) {
		t.Errorf("after the relay has run: got %+v, want Overdue = 3, Unsent = 0 and [0 1 1]", b)
	}
	if _, err := store.Backlog(canceled(), horizons, 10); err == nil {
		t.Error("Backlog with a cancelled context: got no error, want one")
	}
}

// A task with a due time of 0 counts as due since it was written rather than since 1970.
func TestOldestOfImmediateTasks(t *testing.T) {
	store, db := openStore(t, &recorder{}, Config{})
	defer func() { _ = db.Close() }()
	now := time.Now().Truncate(time.Millisecond)
	store.goBy(func() time.Time { return now })
	want := func(what string, oldest time.Time) {
		t.Helper()
		b, err := store.Backlog(t.Context(), nil, 10)
		check(t, err)
		if !b.Oldest.Equal(oldest) {
			t.Errorf("%s: the oldest is due at %v, want %v", what, b.Oldest, oldest)
		}
	}
	written := now
	check(t, store.Schedule(t.Context(), NoTx, Task{ID: "at once", Queue: "q", DeliverAt: time.UnixMilli(0)}))
	now = now.Add(time.Minute)
	want("a task that is due immediately", written)
	check(t, store.Pause(t.Context(), NoTx, topology.Destination{Queue: "other"}, "me"))
	want("the same task and a paused destination", written)
	check(t, store.Schedule(t.Context(), NoTx, Task{ID: "overdue", Queue: "q", DeliverAt: written.Add(-time.Hour)}))
	want("the same task and one that was due an hour earlier", written.Add(-time.Hour))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Headers that a hook adds never make the store refuse a task.
func TestBeforeScheduleMakesNoTaskTooLarge(t *testing.T) {
	large := strings.Repeat("x", 200<<10)
	hooks := Hooks{BeforeSchedule: func(_ context.Context, task *Task) {
		if task.Headers == nil {
			task.Headers = map[string]string{}
		}
		task.Headers["added"] = large
	}}
	store, db := openStore(t, nil, Config{Hooks: hooks})
	defer func() { _ = db.Close() }()
	own := map[string]string{"own": "kept"}
	check(t, store.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now(), Headers: own}))
	task, err := store.Get(t.Context(), NoTx, "a")
	check(t, err)
	if !maps.Equal(task.Headers, own) {
		t.Errorf("the stored task: got %d headers, want only the header own", len(task.Headers))
	}
}
