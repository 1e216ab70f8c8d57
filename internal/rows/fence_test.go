package rows

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fences lists messages of the task with version 3, which was created at start and is due an hour
// later.
func fences() map[string]Fence {
	good := Fence{ID: "a", Version: 3, Created: start, Due: ms(time.Hour)}
	with := func(change func(f *Fence)) Fence {
		f := good
		change(&f)
		return f
	}
	return map[string]Fence{
		"its own":          good,
		"a foreign one's":  with(func(f *Fence) { f.Created = 0 }),
		"a later one's":    with(func(f *Fence) { f.Due++ }),
		"an earlier one's": with(func(f *Fence) { f.Due-- }),
		"an old version's": with(func(f *Fence) { f.Version-- }),
		"an older task's":  with(func(f *Fence) { f.Created-- }),
		"another id's":     with(func(f *Fence) { f.ID = "b" }),
	}
}

// A message marks its task as done only in the task's current version, from its due time on, and in a status that
// allows it. The rules are the same for single tasks and for batches.
func TestFence(t *testing.T) {
	passes := map[string]bool{"its own": true, "a foreign one's": true, "a later one's": true}
	// Each method of the fence, with the status that allows it.
	for way, x := range map[string]struct {
		exchange bool
		statuses string
		do       func(x *table, f Fence) (bool, error)
	}{
		"Done": {false, Pending, func(x *table, f Fence) (bool, error) { return x.Done(x.t.Context(), f, ms(time.Hour)) }},
		"AllDone": {false, Pending, func(x *table, f Fence) (bool, error) {
			n, err := x.AllDone(x.t.Context(), []Fence{{ID: "none"}, f}, ms(time.Hour))
			return n == 1, err
		}},
		"ExchangeDone": {true, Pending + Running + Failed, func(x *table, f Fence) (bool, error) { return x.ExchangeDone(x.t.Context(), f, ms(time.Hour)) }},
	} {
		for name, f := range fences() {
			for _, status := range Statuses {
				table := newTable(t)
				task := toQ("a", time.Hour)
				if x.exchange {
					task = toE("a", "k", time.Hour)
				}
				table.insert(task)
				table.set("a", "version = 3, status = ?, finished_at = 1", status)
				done, err := x.do(table, f)
				check(t, err)
				expected := passes[name] && strings.Contains(x.statuses, status)
				if done != expected {
					t.Errorf("%s of a %s task by %s message: got %v, want %v", way, status, name, done, expected)
				}
				if now := table.get("a").Status; done && now != Done {
					t.Errorf("%s of a %s task returned true and left it %s, want done", way, status, now)
				}
			}
		}
	}
}

// Each method of the fence is for its own kind of destination.
func TestFenceOfDestinations(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("queue", 0), toE("exchange", "k", 0))
	done, err := x.ExchangeDone(t.Context(), Fence{ID: "queue", Version: 1, Due: start}, start)
	check(t, err)
	want(t, "a queue's as an exchange's", done, "false")
	done, err = x.Done(t.Context(), Fence{ID: "exchange", Version: 1, Due: start}, start)
	check(t, err)
	want(t, "an exchange's as a queue's", done, "false")
	n, err := x.AllDone(t.Context(), []Fence{{ID: "exchange", Version: 1, Due: start}, {ID: "queue", Version: 1, Due: start}}, start)
	check(t, err)
	want(t, "in a batch", n, "1")
}

// An expired task has no effect, and its message sets the status to expired. For a task with a due time of 0, the time
// to expiry counts from when the task was written.
func TestExpiry(t *testing.T) {
	for _, tt := range []struct {
		due  time.Time
		now  time.Duration
		over bool
	}{
		{at(0), time.Minute - time.Millisecond, false},
		{at(0), time.Minute, true},
		{time.UnixMilli(0), time.Minute - time.Millisecond, false},
		{time.UnixMilli(0), time.Minute, true},
		{at(time.Hour), time.Hour + 59*time.Second, false},
	} {
		x := newTable(t)
		task := &Task{Content: Content{ID: "a", Queue: "q", DeliverAt: tt.due, ExpiresAfter: time.Minute}}
		x.insert(task)
		f := Fence{ID: "a", Version: 1, Due: MaxDue}
		found, err := x.Find(t.Context(), "a", ms(tt.now), Unlocked)
		check(t, err)
		if found.Over != tt.over {
			t.Errorf("%+v: over: got %v, want %v", tt, found.Over, tt.over)
		}
		if found.Late(f) != tt.over {
			t.Errorf("%+v: late: got %v, want %v", tt, found.Late(f), tt.over)
		}
		done, err := x.Done(t.Context(), f, ms(tt.now))
		check(t, err)
		if done == tt.over {
			t.Errorf("%+v: done: got %v, want not %v", tt, done, tt.over)
		}
		check(t, x.Expire(t.Context(), f, ms(tt.now)))
		status := map[bool]string{true: Expired, false: Done}[tt.over]
		x.wantTask("a", status, 1)
	}
}

// A message may still have an effect while its version is current and no other effect, cancellation
// or end excludes it. For an exchange, other queues may already have had their effects.
func TestFound(t *testing.T) {
	x := newTable(t)
	keyed := toQ("a", 0)
	keyed.UniqueKey = "k"
	x.insert(keyed, toE("b", "k", 0))
	for id, open := range map[string]string{"a": "pending", "b": "pending running done failed"} {
		for _, status := range Statuses {
			x.set(id, "status = ?, finished_at = 1", status)
			found, err := x.Find(t.Context(), id, start, Unlocked)
			check(t, err)
			if expected := strings.Contains(open, status); found.Open(Fence{Version: 1}) != expected {
				t.Errorf("%s, status %s: Open returned %v, want the opposite", id, status, !expected)
			}
			if found.Open(Fence{Version: 2}) || found.Open(Fence{Version: 1, Created: 1}) {
				t.Errorf("%s, status %s: Open is true for another task's message, want false", id, status)
			}
			want(t, "a unique key", found.Keyed, strconv.FormatBool(id == "a"))
			want(t, "a queue's", found.ToQueue, strconv.FormatBool(id == "a"))
		}
	}
	found, err := x.Find(t.Context(), "none", start, Exclusive)
	check(t, err)
	want(t, "none", found, fmt.Sprint(Found{}))
}

// A queue has one effect for each version. An effect stays recorded. If its attempt runs under a lease, no other
// attempt records it before the lease ends.
func TestRecordEffect(t *testing.T) {
	x := newTable(t)
	k := EffectKey{Task: "a", Created: 1, Version: 1, Queue: "q"}
	record := func(k EffectKey, now int64) bool {
		t.Helper()
		recorded, err := x.RecordEffect(t.Context(), k, now)
		check(t, err)
		return recorded
	}
	want(t, "the first", record(k, start), "true")
	want(t, "once more", record(k, start), "false")
	for name, other := range map[string]EffectKey{
		"another queue": {"a", 1, 1, "r"}, "another version": {"a", 1, 2, "q"}, "another task of the id": {"a", 2, 1, "q"}, "another task": {"b", 1, 1, "q"},
	} {
		want(t, name, record(other, start), "true")
	}
	leased := EffectKey{"c", 1, 1, "q"}
	_, err := x.LockRecord(t.Context(), leased, start)
	check(t, err)
	check(t, x.BeginAttempt(t.Context(), leased, 1, "token", ms(time.Minute), start))
	want(t, "under a lease", record(leased, ms(time.Minute-time.Millisecond)), "false")
	want(t, "after the lease", record(leased, ms(time.Minute)), "true")
	list, err := x.Effects(t.Context(), "a")
	check(t, err)
	var shown []string
	for _, e := range list {
		shown = append(shown, fmt.Sprintf("%d %s %v %d %v", e.Version, e.Queue, e.DoneAt.Equal(at(0)), e.Attempts, e.LeaseUntil.IsZero()))
	}
	want(t, "shown", strings.Join(shown, "; "), "1 q true 0 true; 1 q true 0 true; 1 r true 0 true; 2 q true 0 true")
}
