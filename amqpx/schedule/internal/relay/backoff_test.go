package relay

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

func TestBackoffAfterATry(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	in := now.Add
	const batch = 150
	for name, c := range map[string]struct {
		before backoff
		x      tally
		want   backoff
	}{
		"first refusal":    {backoff{}, tally{refused: 3}, backoff{1, in(time.Second), 10}},
		"second":           {backoff{failures: 1, window: 10}, tally{refused: 3}, backoff{2, in(2 * time.Second), 10}},
		"tenth":            {backoff{failures: 9, window: 10}, tally{refused: 3}, backoff{10, in(time.Minute), 10}},
		"no answer":        {backoff{}, tally{silent: 1}, backoff{1, in(time.Second), 10}},
		"some":             {backoff{failures: 5, window: 40}, tally{sent: 2, refused: 3}, backoff{1, in(time.Second), 10}},
		"gone":             {backoff{failures: 5, window: 10}, tally{refused: 3, gone: true}, backoff{0, in(time.Second), goneWindow}},
		"all":              {backoff{failures: 5, window: 10}, tally{sent: 10}, backoff{0, time.Time{}, 20}},
		"all, for a while": {backoff{window: 80}, tally{sent: 80}, backoff{0, time.Time{}, batch}},
	} {
		got := c.before.after(c.x, now, batch, 0)
		if got != c.want {
			t.Errorf("%s: got the back-off %+v, want %+v", name, got, c.want)
		}
		if over := name == "all, for a while"; got.recovered(batch) != over {
			t.Errorf("%s: recovered: got %t, want %t", name, !over, over)
		}
		if jittered := c.before.after(c.x, now, batch, 1); !c.want.until.IsZero() && !c.x.gone &&
			jittered.until.Sub(now) != c.want.until.Sub(now)*3/4 {
			t.Errorf("%s: pause with full jitter: got %v, want %v", name, jittered.until.Sub(now), c.want.until.Sub(now)*3/4)
		}
	}
}

// A claim is divided by target. During its back-off, a target gets no tasks, and then only a small batch at a time
// until it accepts them.
func TestClaimsAreDividedByTarget(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	h := newBackoffs(100)
	task := func(q, x, key string) *rows.Task {
		return &rows.Task{Content: rows.Content{Queue: q, Exchange: x, RoutingKey: key}}
	}
	refused := map[Target]*tally{{Queue: "full"}: {refused: 1}, {Exchange: "x", Key: "bad"}: {refused: 1}}
	h.learn(refused, now, now)
	for x, want := range map[Target]int{{Queue: "full"}: 0, {Queue: "good"}: 100, {Exchange: "x", Key: "bad"}: 0, {Exchange: "x", Key: "good"}: 100} {
		if got := h.allowance(x, now); got != want {
			t.Errorf("allowance of %v: got %d tasks, want %d", x, got, want)
		}
	}
	full, x := rows.Lane{Queue: "full"}, rows.Lane{Exchange: "x"}
	others := rows.ClaimRequest{Lane: x, Until: 7, Most: 100, OtherKeys: []string{"bad"}}
	if got := h.requests(full, 7, now); got != nil {
		t.Errorf("requests for the refused queue during the pause: got %+v, want none", got)
	}
	if got := h.requests(x, 7, now); !reflect.DeepEqual(got, []rows.ClaimRequest{others}) {
		t.Errorf("requests for the exchange during the pause: got %+v, want only %+v", got, others)
	}
	list := []*rows.Task{task("good", "", ""), task("", "x", "good"), task("", "x", "bad"), task("", "x", "bad")}
	if p := h.part(list, now); len(p.shared) != 2 || len(p.alone) != 0 || len(p.later) != 1 {
		t.Errorf("parts during the pause: got %+v, want 2 shared, 0 alone and 1 later", p)
	}
	now = now.Add(2 * time.Second)
	if got := h.requests(full, 7, now); !reflect.DeepEqual(got, []rows.ClaimRequest{{Lane: full, Until: 7, Most: firstWindow}}) {
		t.Errorf("requests for the refused queue after the pause: got %+v, want one for %d tasks", got, firstWindow)
	}
	try := rows.ClaimRequest{Lane: x, Until: 7, Most: firstWindow, Keys: []string{"bad"}}
	if got := h.requests(x, 7, now); !reflect.DeepEqual(got, []rows.ClaimRequest{try, others}) {
		t.Errorf("requests for the exchange after the pause: got %+v, want %+v and %+v", got, try, others)
	}
	bad := Target{Exchange: "x", Key: "bad"}
	if p := h.part(list, now); len(p.shared) != 2 || len(p.alone[bad]) != 2 {
		t.Errorf("parts after the pause: got %+v, want 2 shared and 2 alone for the refused key", p)
	}
	if p := h.part(list, now); len(p.shared) != 2 || len(p.alone) != 0 || len(p.later) != 1 {
		t.Errorf("parts while the target is tried: got %+v, want 2 shared, 0 alone and 1 later", p)
	}
	for range 4 { // the window grows to 20, 40, 80 and 100 tasks
		h.learn(map[Target]*tally{bad: {sent: 1}}, now, now)
	}
	h.release([]Target{bad})
	if p := h.part(list, now); len(p.shared) != 4 {
		t.Errorf("parts after the target accepted all tasks: got %+v, want 4 shared", p)
	}
}

// If no target gets an answer, the broker is the cause, and no target is put into back-off.
func TestSilentBrokerBlamesNoTarget(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	h := newBackoffs(100)
	silent := map[Target]*tally{{Queue: "a"}: {silent: 1}}
	h.learn(silent, now, now.Add(10*time.Second))
	if h.allowance(Target{Queue: "a"}, now) != 100 {
		t.Error("allowance without any answer: got less than 100, want 100")
	}
	h.confirmed(now.Add(5 * time.Second))
	h.learn(silent, now, now.Add(10*time.Second))
	if h.allowance(Target{Queue: "a"}, now) != 0 {
		t.Error("allowance after the broker confirmed for other targets: got more than 0, want 0")
	}
}

// The back-offs of targets that have not been used for a long time are deleted.
func TestBackoffIsForgotten(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	h := newBackoffs(100)
	for i := range 3 {
		h.learn(map[Target]*tally{{Queue: fmt.Sprint(i)}: {refused: 1}}, now, now.Add(time.Duration(i)*time.Second))
	}
	if next := h.next(now); next.IsZero() || next.After(now.Add(time.Second)) {
		t.Errorf("next try: got %v, want at most a second after %v", next, now)
	}
	if next := h.next(now.Add(time.Hour)); !next.IsZero() || len(h.targets) != 0 {
		t.Errorf("after an hour: got the next try at %v and %d targets, want the zero time and 0", next, len(h.targets))
	}
}
