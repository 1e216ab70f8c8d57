package sweep

import (
	"fmt"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

func TestGround(t *testing.T) {
	const minute = 60_000
	const now, grace = 1000 * minute, 2 * minute
	for _, c := range []struct {
		name    string
		first   int64 // resend_at, in minutes before now
		reached int64 // minutes before now; -1: unknown
		lively  int64
		ready   int
		want    ground
		ask     bool
	}{
		{"consumers have passed the task", 5, 3, 3, undecided, passedBy, false},
		{"consumers have just reached it", 5, 5, 3, undecided, passedBy, false},
		{"consumers passed it and then stopped", 50, 40, 40, undecided, passedBy, false},
		{"consumers are approaching it", 5, 6, 1, undecided, noGround, false},
		{"consumers have stopped", 5, 60, 60, undecided, noGround, true},
		{"consumers have stopped, messages are waiting", 5, 60, 60, 1, noGround, false},
		{"consumers have stopped, the queue is empty", 5, 60, 60, 0, queueEmpty, false},
		{"consumers have stopped, the depth is unknown", 5, 60, 60, unknownDepth, allQuiet, false},
		{"no task was ever done", 5, -1, -1, undecided, noGround, true},
		{"no task was ever done, the queue is empty", 5, -1, -1, 0, queueEmpty, false},
		{"only tasks that were sent again are done", 5, 6, -1, 0, queueEmpty, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ago := func(minutes int64) int64 {
				if minutes < 0 {
					return 0
				}
				return now - minutes*minute
			}
			e := evidence{now: now, grace: grace, first: ago(c.first), Passage: rows.Passage{Reached: ago(c.reached), Lively: ago(c.lively)}, ready: c.ready}
			got, ask := e.ground()
			if got != c.want || ask != c.ask {
				t.Errorf("ground: got %q and ask = %t, want %q and %t", got, ask, c.want, c.ask)
			}
			if until := e.until(got); got == passedBy && until != e.Reached || got != passedBy && until != now {
				t.Errorf("until(%q) = %d for %+v, want Reached if the ground is %q and now otherwise", got, until, e, passedBy)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	const grace = 100
	now := int64(1000)
	w := &window{}
	ids := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprint(i))
		}
		return list
	}
	// turn advances the time, checks how many tasks the window allows while the given number of tasks sent again are
	// unsettled, and sends as many tasks as use says.
	turn := func(g ground, passes int64, unsettled, room, use int) {
		t.Helper()
		now += passes
		if got := w.allowed(g, now, grace, unsettled); got != room {
			t.Fatalf("%+v: the window allows %d tasks, want %d", *w, got, room)
		}
		if use > 0 {
			w.remember(ids(use), now)
		}
	}
	turn(allQuiet, 0, 0, 10, 10)
	turn(allQuiet, 10, 10, 0, 0) // the messages may still arrive
	turn(allQuiet, 10, 6, 0, 0)
	turn(allQuiet, 10, 5, 20, 20) // half of them have arrived, which is enough
	turn(allQuiet, 10, 0, 40, 7)
	turn(allQuiet, 10, 0, 40, 40) // only 7 of 40 were used before, so the window does not grow
	turn(allQuiet, grace-1, 40, 0, 0)
	turn(allQuiet, 1, 40, 20, 20)
	for _, size := range []int{10, 5, 2, 1, 1} {
		turn(allQuiet, grace, w.sent, size, size)
	}
	turn(allQuiet, 1, 0, 2, 2)
	turn(queueEmpty, grace, 2, 10, 10) // the window grows again because the queue is known to be empty
	turn(queueEmpty, grace, 10, 10, 10)
	for range 20 {
		size := min(2*w.size, mostTries)
		turn(queueEmpty, 1, 0, size, size)
	}
	if w.size != mostTries || len(w.out) != watched {
		t.Errorf("the window has the size %d and watches %d tasks, want %d and %d", w.size, len(w.out), mostTries, watched)
	}
}
