package rows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Lanes are the destinations with something to send, with their first instant.
func TestLanes(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("a", time.Hour), toQ("b", 0), toE("c", "k", time.Minute))
	x.insert(&Task{ID: "d", Queue: "later", DeliverAt: at(2 * time.Hour)}, &Task{ID: "e", Queue: "over", DeliverAt: at(0)})
	x.end("e", Done, start)
	x.insert(&Task{ID: "f", Queue: "sent", DeliverAt: at(0)})
	x.set("f", "resend_at = ?", ms(time.Minute))
	for _, tt := range []struct {
		p     Purpose
		until time.Duration
		want  string
	}{
		{ToSend, time.Hour, "[{{q } 1800000000000} {{ e} 1800000060000}]"},
		{ToSend, 0, "[{{q } 1800000000000}]"},
		{ToSend, -1, "[]"},
		{ToSend, 2 * time.Hour, "[{{later } 1800007200000} {{q } 1800000000000} {{ e} 1800000060000}]"},
		{ToResend, time.Minute, "[{{sent } 1800000060000}]"},
		{ToResend, 0, "[]"},
	} {
		list, err := x.Lanes(t.Context(), tt.p, ms(tt.until))
		check(t, err)
		want(t, fmt.Sprint(tt.p, tt.until), list, tt.want)
	}
	lanes, err := x.PendingLanes(t.Context())
	check(t, err)
	want(t, "pending", lanes, "[{later } {q } { e} {sent }]")
	want(t, "a task's", toE("a", "k", 0).Lane(), "{ e}")
}

// Each wish has the most urgent rows of its lane that it asks for, without those that
// somebody has claimed.
func TestPickAndClaim(t *testing.T) {
	x := newTable(t)
	for i := range 4 {
		x.insert(toQ(fmt.Sprint("q", i), time.Duration(3-i)*time.Minute), toE(fmt.Sprint("e", i), fmt.Sprint("k", i%2), time.Duration(i)*time.Minute))
		x.set(fmt.Sprint("e", i), "sends = ?", i)
	}
	x.set("q3", "claimed_until = ?", ms(time.Second))
	q, e := Lane{Queue: "q"}, Lane{Exchange: "e"}
	ids := func(picks []Pick) string {
		var list []string
		for _, p := range picks {
			list = append(list, fmt.Sprint(p.Wish, p.ID))
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	all := ms(time.Hour)
	for expected, tt := range map[string]struct {
		wish        Wish
		skip, limit int
	}{
		"0q0 0q1 0q2":     {Wish{Lane: q, Until: all}, 0, 9},
		"0q2":             {Wish{Lane: q, Until: all}, 0, 1},
		"0q1":             {Wish{Lane: q, Until: all}, 1, 1},
		"0q1 0q2":         {Wish{Lane: q, Until: ms(2 * time.Minute)}, 0, 9},
		"0q0":             {Wish{Lane: q, Until: all, After: ms(2 * time.Minute)}, 0, 9},
		"0e0 0e2":         {Wish{Lane: e, Until: all, Keys: []string{"k0"}}, 0, 9},
		"0e1 0e3":         {Wish{Lane: e, Until: all, OtherKeys: []string{"k0"}}, 0, 9},
		"0e0 0e1":         {Wish{Lane: e, Until: all, SendsLess: 2}, 0, 9},
		"0e0 0e1 0e2 0e3": {Wish{Lane: e, Until: all}, 0, 9},
		"":                {Wish{Lane: e, Until: all}, 0, 0},
	} {
		picks, err := x.Pick(t.Context(), ToSend, []Wish{tt.wish}, []int{tt.skip}, []int{tt.limit}, start)
		check(t, err)
		if got := ids(picks); got != expected {
			t.Errorf("%+v: %s, expected %s", tt, got, expected)
		}
	}
	picks, err := x.Pick(t.Context(), ToSend, []Wish{{Lane: q, Until: all}, {Lane: e, Until: all}}, []int{0, 0}, []int{2, 2}, ms(time.Second))
	check(t, err)
	want(t, "of two lanes", ids(picks), "0q2 0q3 1e0 1e1")
	claimed, err := x.Claim(t.Context(), picks, ms(time.Minute))
	check(t, err)
	want(t, "claimed", len(claimed), "4")
	picks, err = x.Pick(t.Context(), ToSend, []Wish{{Lane: q, Until: all}}, []int{0}, []int{9}, ms(2*time.Second))
	check(t, err)
	want(t, "beside a claim", ids(picks), "0q0 0q1")
	picks, err = x.Pick(t.Context(), ToSend, []Wish{{Lane: q, Until: all}}, []int{0}, []int{9}, ms(time.Minute))
	check(t, err)
	want(t, "after its end", ids(picks), "0q0 0q1 0q2 0q3")
}

// A pick has the size of the body and the headers.
func TestPickSizes(t *testing.T) {
	x := newTable(t)
	large := toQ("a", 0)
	large.Body, large.Headers = make([]byte, 1000), map[string]string{"a": "b"}
	x.insert(large)
	picks, err := x.Pick(t.Context(), ToSend, []Wish{{Lane: Lane{Queue: "q"}, Until: start}}, []int{0}, []int{1}, start)
	check(t, err)
	want(t, "size", picks[0].Size, fmt.Sprint(1000+len(`{"a":"b"}`)))
}

// What a relay says of claimed tasks holds for those that still have the version.
func TestSettle(t *testing.T) {
	pauses := []time.Duration{time.Minute, time.Hour}
	for name, tt := range map[string]struct {
		before string // of the row
		a      Assignment
		want   string // status, sends, failures, claimed_until, resend_at and last_error
	}{
		"sent":                {"claimed_until = 9", MarkSent(at(0), pauses), "pending 1 0 0 1800003660000 "},
		"sent again":          {"sends = 1", MarkSent(at(0), pauses), "pending 2 0 0 1800007200000 "},
		"sent late":           {"due_at = 0", MarkSent(at(0), pauses), "pending 1 0 0 1800000060000 "},
		"kept for later":      {"resend_at = 1900000000000", MarkSent(at(0), pauses), "pending 1 0 0 1900000000000 "},
		"sent after failures": {"send_failures = 2, last_error = 'send'", MarkSent(at(0), pauses), "pending 1 0 0 1800003660000 "},
		"sent after attempts": {"attempts = 1, last_error = 'why'", MarkSent(at(0), pauses), "pending 1 0 0 1800003660000 why"},
		"given back":          {"send_failures = 1", GiveBack("full", at(0), at(time.Second)), "pending 0 2 1800000001000 0 full"},
		"postponed":           {"send_failures = 1", Postpone(at(time.Second)), "pending 0 1 1800000001000 0 "},
		"failed":              {"claimed_until = 9", FailUnsendable("large", at(0)), "failed 0 1 0 0 large"},
		"late":                {"claimed_until = 9", EndLate(at(0)), "expired 0 0 0 0 "},
	} {
		x := newTable(t)
		x.insert(toQ("a", time.Hour), toQ("other version", time.Hour))
		x.set("a", tt.before)
		x.set("other version", "version = 2")
		held, err := x.Settle(t.Context(), 1, []string{"a", "other version"}, tt.a)
		check(t, err)
		want(t, name+": held", held, "[]")
		var status, lastError string
		var sends, failures, claimed, resend int64
		check(t, x.one(t.Context(),
			"SELECT status, sends, send_failures, claimed_until, COALESCE(resend_at, 0), COALESCE(last_error, '') FROM rabbitdelay_tasks WHERE id = 'a'", nil,
			&status, &sends, &failures, &claimed, &resend, &lastError))
		want(t, name, strings.Join([]string{status, fmt.Sprint(sends, failures, claimed, resend), lastError}, " "), tt.want)
		x.wantTask("other version", Pending, 2)
	}
	want(t, "others", others([]string{"a", "b", "c"}, []string{"b"}), "[a c]")
}

// A task that is no longer pending keeps its outcome, whatever a relay says of it.
func TestSettleLeavesOutcomes(t *testing.T) {
	for name, a := range map[string]Assignment{
		"given back": GiveBack("full", at(0), at(0)), "failed": FailUnsendable("large", at(0)), "late": EndLate(at(0)),
	} {
		x := newTable(t)
		x.insert(toQ("a", 0))
		x.end("a", Done, start)
		_, err := x.Settle(t.Context(), 1, []string{"a"}, a)
		check(t, err)
		if got := x.get("a"); got.Status != Done || got.LastError != "" {
			t.Errorf("%s: it is %s: %s", name, got.Status, got.LastError)
		}
	}
}

// How far consumers have come is known by the tasks that were done: when their messages came,
// and when one was done by its only message.
func TestPassages(t *testing.T) {
	x := newTable(t)
	add := func(id, key string, due, sent, finished time.Duration, sends int) {
		x.insert(toE(id, key, due))
		x.set(id, "status = 'done', sends = ?, sent_at = ?, finished_at = ?", sends, ms(sent), ms(finished))
	}
	add("in time", "k1", time.Minute, 0, time.Minute+1, 1)
	add("late", "k2", 0, time.Minute, 2*time.Minute, 1)
	add("again", "k3", time.Second, time.Hour, time.Hour, 2)
	add("not due", "k4", 3*time.Hour, 0, 0, 1)
	x.insert(toE("pending", "k5", 0))
	got, err := x.Passages(t.Context(), Lane{Exchange: "e"}, ms(time.Hour))
	check(t, err)
	want(t, "passages", got, "map[k1:{1800000060000 1800000060000} k2:{1800000060000 1800000120000} k3:{1800000001000 0}]")
	x.set("pending", "resend_at = ?", ms(time.Minute))
	firsts, err := x.FirstOverdue(t.Context(), Lane{Exchange: "e"}, ms(time.Hour))
	check(t, err)
	want(t, "overdue", firsts, "map[k5:1800000060000]")
	firsts, err = x.FirstOverdue(t.Context(), Lane{Exchange: "e"}, start)
	check(t, err)
	want(t, "overdue before", firsts, "map[]")
}

// What was sent again is settled when its task is done, and also when its handler has
// scheduled it again.
func TestCountUnsettled(t *testing.T) {
	x := newTable(t)
	ids := []string{"done", "recurs", "lost"}
	for _, id := range ids {
		x.insert(toQ(id, 0))
		x.set(id, "sends = 2, resend_at = due_at + 1")
	}
	unsettled := func() int64 {
		n, err := x.CountUnsettled(t.Context(), ids)
		check(t, err)
		return n
	}
	want(t, "before", unsettled(), "3")
	_, err := x.Insert(t.Context(), []*Task{toQ("recurs", time.Hour)}, start, Replace)
	check(t, err)
	want(t, "after one recurs", unsettled(), "2")
	done, err := x.Done(t.Context(), Fence{ID: "done", Version: 1, Due: start}, start)
	check(t, err)
	want(t, "done", done, "true")
	want(t, "after one is done", unsettled(), "1")
	if n, err := x.CountUnsettled(t.Context(), nil); n != 0 || err != nil {
		t.Errorf("of none: %d, %v", n, err)
	}
}
