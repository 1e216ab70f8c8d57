package rows

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// The pause and the rate limit of a lane (the tasks for one destination) can be written and read again.
func TestGates(t *testing.T) {
	x := newTable(t)
	q, e := Lane{Queue: "q"}, Lane{Exchange: "e"}
	for _, l := range []Lane{q, e, q} {
		g, err := x.LockGate(t.Context(), l)
		check(t, err)
		if expected := (&Gate{Lane: l, Burst: 1}); !reflect.DeepEqual(g, expected) {
			t.Errorf("LockGate of a new gate: got %+v, want %+v", g, expected)
		}
	}
	written := &Gate{
		Lane: q, PausedAt: at(0), PausedBy: "anna", PerSecond: 0.5, Burst: 3, Free: 7,
		SpreadDue: at(time.Minute), SpreadUntil: at(time.Hour), SpreadRate: 2.5, SpreadFree: 9,
	}
	check(t, x.WriteGate(t.Context(), written))
	list, err := x.Gates(t.Context())
	check(t, err)
	if expected := []*Gate{{Lane: e, Burst: 1}, written}; !reflect.DeepEqual(list, expected) {
		t.Errorf("Gates: got %+v, want %+v", list, expected)
	}
	spent := *written
	spent.Free, spent.SpreadFree, spent.PausedBy = 8, 10, "not written"
	check(t, x.SpendGate(t.Context(), &spent))
	by, err := x.LockGates(t.Context(), []Lane{q, {Queue: "none"}})
	check(t, err)
	want(t, "number of locked gates", len(by), "1")
	want(t, "the gate after SpendGate", fmt.Sprintf("%d %d %s", by[q].Free, by[q].SpreadFree, by[q].PausedBy), "8 10 anna")
}

func TestGateStates(t *testing.T) {
	for name, tt := range map[string]struct {
		g               Gate
		paused, spreads bool
	}{
		"nothing":           {Gate{}, false, false},
		"a pause":           {Gate{PausedAt: at(0)}, true, false},
		"a spread":          {Gate{SpreadRate: 1, SpreadUntil: at(1)}, false, true},
		"a finished spread": {Gate{SpreadRate: 1, SpreadUntil: at(0)}, false, false},
		"no rate":           {Gate{SpreadUntil: at(1)}, false, false},
	} {
		if tt.g.Paused() != tt.paused {
			t.Errorf("%s: got Paused = %t, want %t", name, tt.g.Paused(), tt.paused)
		}
		if tt.g.Spreads(at(0)) != tt.spreads {
			t.Errorf("%s: got Spreads = %t, want %t", name, tt.g.Spreads(at(0)), tt.spreads)
		}
	}
}

// Tasks that were sent to the broker are recalled into the table with a new version, up to the given number. The tasks
// with the earliest resend time are recalled first.
func TestRecall(t *testing.T) {
	x := newTable(t)
	q := Lane{Queue: "q"}
	for i := range 4 {
		id := fmt.Sprint(i)
		x.insert(toQ(id, time.Hour))
		x.set(id, "sends = 1, sent_at = 1, claimed_until = 1, resend_at = ?", ms(time.Duration(4-i)*time.Minute))
	}
	x.insert(toQ("unsent", 0), toE("another lane's", "k", 0))
	x.set("another lane's", "resend_at = 1")
	recall := func(until time.Duration, most int) int64 {
		t.Helper()
		n, err := x.Recall(t.Context(), q, ms(until), most, start)
		check(t, err)
		return n
	}
	want(t, "recalled until the start", recall(0, 9), "0")
	want(t, "recalled with the limit 2", recall(time.Hour, 2), "2")
	for id, version := range map[string]int64{"0": 1, "1": 1, "2": 2, "3": 2, "unsent": 1, "another lane's": 1} {
		x.wantTask(id, Pending, version)
	}
	want(t, "recalled until 3m", recall(3*time.Minute, 9), "1")
	n, err := x.CountUnsent(t.Context(), q, 0, ms(time.Hour), 10)
	check(t, err)
	want(t, "unsent after the recalls", n, "4")
}

func TestDueOfALane(t *testing.T) {
	x := newTable(t)
	q := Lane{Queue: "q"}
	x.insert(toQ("a", -time.Hour), toQ("b", -time.Minute), toQ("c", time.Hour), toQ("d", -2*time.Hour))
	x.end("d", Done, start)
	x.set("b", "resend_at = 1")
	for sent, expected := range map[bool]time.Duration{false: -time.Hour, true: -time.Minute} {
		oldest, err := x.OldestOf(t.Context(), q, sent, start)
		check(t, err)
		want(t, fmt.Sprint("the oldest, sent ", sent), oldest.Sub(at(0)), expected.String())
	}
	oldest, err := x.OldestOf(t.Context(), Lane{Queue: "none"}, false, start)
	check(t, err)
	want(t, "OldestOf an empty lane is zero", oldest.IsZero(), "true")
	for most, expected := range map[int64]string{10: "2", 1: "1"} {
		n, err := x.CountDue(t.Context(), q, start, most)
		check(t, err)
		want(t, fmt.Sprint("due, with the limit ", most), n, expected)
	}
}

// equal reports whether all fields of two rows are equal.
func equal(a, b any) bool { return reflect.DeepEqual(a, b) }
