package rows

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fences returns messages that may arrive for a task with version 3, which was created at start and is due an hour
// later. The keys say whose message it is.
func fences() map[string]Fence {
	good := Fence{ID: "a", Version: 3, Created: start, Due: ms(time.Hour)}
	with := func(change func(f *Fence)) Fence {
		f := good
		change(&f)
		return f
	}
	return map[string]Fence{
		"its own":          good,
		"a foreign":        with(func(f *Fence) { f.Created = 0 }),
		"a later":          with(func(f *Fence) { f.Due++ }),
		"an earlier":       with(func(f *Fence) { f.Due-- }),
		"an old version's": with(func(f *Fence) { f.Version-- }),
		"an older task's":  with(func(f *Fence) { f.Created-- }),
		"another id's":     with(func(f *Fence) { f.ID = "b" }),
	}
}

// A message marks its task as done only if it has the task's current version and is not earlier than its due time, and
// if the task has a status that allows it. The rules are the same for single tasks and for batches.
func TestFence(t *testing.T) {
	passes := map[string]bool{"its own": true, "a foreign": true, "a later": true}
	// These methods compare a message with its task. Each one allows the change only for the given statuses.
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
					t.Errorf("%s of a %s task by %s message: got %t, want %t", way, status, name, done, expected)
				}
				if now := table.get("a").Status; done && now != Done {
					t.Errorf("after %s, the %s task is %s, want done", way, status, now)
				}
			}
		}
	}
}

// Each of the methods that compare a message with its task works only for one kind of destination.
func TestFenceOfDestinations(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("queue", 0), toE("exchange", "k", 0))
	done, err := x.ExchangeDone(t.Context(), Fence{ID: "queue", Version: 1, Due: start}, start)
	check(t, err)
	want(t, "ExchangeDone of a task for a queue", done, "false")
	done, err = x.Done(t.Context(), Fence{ID: "exchange", Version: 1, Due: start}, start)
	check(t, err)
	want(t, "Done of a task for an exchange", done, "false")
	n, err := x.AllDone(t.Context(), []Fence{{ID: "exchange", Version: 1, Due: start}, {ID: "queue", Version: 1, Due: start}}, start)
	check(t, err)
	want(t, "AllDone of one of each", n, "1")
}

// An expired task has no effect, and its message changes its status to expired. If the due time of a task is 0, its
// expiry is counted from the time at which the task was written.
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
			t.Errorf("the task %+v: got Over = %t, want %t", tt, found.Over, tt.over)
		}
		if found.Late(f) != tt.over {
			t.Errorf("the task %+v: got Late = %t, want %t", tt, found.Late(f), tt.over)
		}
		done, err := x.Done(t.Context(), f, ms(tt.now))
		check(t, err)
		if done == tt.over {
			t.Errorf("the task %+v: got Done = %t, want %t", tt, done, !tt.over)
		}
		check(t, x.Expire(t.Context(), f, ms(tt.now)))
		status := map[bool]string{true: Expired, false: Done}[tt.over]
		x.wantTask("a", status, 1)
	}
}

// A message can still take effect if its version is current and the task has no final status. A task for an exchange
// may already have taken effect in other queues, so it stays open when it is running, done or failed.
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
				t.Errorf("task %s with the status %s: got Open = %t, want %t", id, status, !expected, expected)
			}
			if found.Open(Fence{Version: 2}) || found.Open(Fence{Version: 1, Created: 1}) {
				t.Errorf("task %s with the status %s: got Open = true for a message of another version or task, want false", id, status)
			}
			want(t, "Keyed", found.Keyed, strconv.FormatBool(id == "a"))
			want(t, "ToQueue", found.ToQueue, strconv.FormatBool(id == "a"))
		}
	}
	found, err := x.Find(t.Context(), "none", start, Exclusive)
	check(t, err)
	want(t, "a task that does not exist", found, fmt.Sprint(Found{}))
}

// Each queue can record one effect for each version of a task. While an attempt is running under a lease, no other
// effect can be recorded.
func TestRecordEffect(t *testing.T) {
	x := newTable(t)
	k := EffectKey{Task: "a", Created: 1, Version: 1, Queue: "q"}
	record := func(k EffectKey, now int64) bool {
		t.Helper()
		recorded, err := x.RecordEffect(t.Context(), k, now)
		check(t, err)
		return recorded
	}
	want(t, "recorded", record(k, start), "true")
	want(t, "recorded a second time", record(k, start), "false")
	for name, other := range map[string]EffectKey{
		"another queue": {"a", 1, 1, "r"}, "another version": {"a", 1, 2, "q"}, "another task with the id": {"a", 2, 1, "q"}, "another task": {"b", 1, 1, "q"},
	} {
		want(t, "recorded for "+name, record(other, start), "true")
	}
	leased := EffectKey{"c", 1, 1, "q"}
	_, err := x.LockRecord(t.Context(), leased, start)
	check(t, err)
	check(t, x.BeginAttempt(t.Context(), leased, 1, "token", ms(time.Minute), start))
	want(t, "recorded during a lease", record(leased, ms(time.Minute-time.Millisecond)), "false")
	want(t, "recorded after the lease", record(leased, ms(time.Minute)), "true")
	list, err := x.Effects(t.Context(), "a")
	check(t, err)
	var shown []string
	for _, e := range list {
		shown = append(shown, fmt.Sprintf("%d %s %v %d %v", e.Version, e.Queue, e.DoneAt.Equal(at(0)), e.Attempts, e.LeaseUntil.IsZero()))
	}
	want(t, "effects", strings.Join(shown, "; "), "1 q true 0 true; 1 q true 0 true; 1 r true 0 true; 2 q true 0 true")
}
