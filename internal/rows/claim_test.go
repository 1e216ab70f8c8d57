package rows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Lanes returns the destinations that have tasks to send, with their first due times.
func TestLanes(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("a", time.Hour), toQ("b", 0), toE("c", "k", time.Minute))
	x.insert(&Task{Content: Content{ID: "d", Queue: "later", DeliverAt: at(2 * time.Hour)}}, &Task{Content: Content{ID: "e", Queue: "over", DeliverAt: at(0)}})
	x.end("e", Done, start)
	x.insert(&Task{Content: Content{ID: "f", Queue: "sent", DeliverAt: at(0)}})
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
		want(t, fmt.Sprintf("lanes for purpose %v until %v", tt.p, tt.until), list, tt.want)
	}
	lanes, err := x.PendingLanes(t.Context())
	check(t, err)
	want(t, "pending lanes", lanes, "[{later } {q } { e} {sent }]")
	want(t, "the lane of a task", toE("a", "k", 0).Lane(), "{ e}")
}

// Each request gets the most urgent rows in its lane (the tasks for one destination), without rows that are already
// claimed.
func TestPickAndClaim(t *testing.T) {
	x := newTable(t)
	for i := range 4 {
		x.insert(toQ(fmt.Sprint("q", i), time.Duration(3-i)*time.Minute), toE(fmt.Sprint("e", i), fmt.Sprint("k", i%2), time.Duration(i)*time.Minute))
		x.set(fmt.Sprint("e", i), "sends = ?", i)
	}
	x.set("q3", "claimed_until = ?", ms(time.Second))
	q, e := Lane{Queue: "q"}, Lane{Exchange: "e"}
	ids := func(candidates []Candidate) string {
		var list []string
		for _, p := range candidates {
			list = append(list, fmt.Sprint(p.Request, p.ID))
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	all := ms(time.Hour)
	for expected, tt := range map[string]struct {
		request     ClaimRequest
		skip, limit int
	}{
		"0q0 0q1 0q2":     {ClaimRequest{Lane: q, Until: all}, 0, 9},
		"0q2":             {ClaimRequest{Lane: q, Until: all}, 0, 1},
		"0q1":             {ClaimRequest{Lane: q, Until: all}, 1, 1},
		"0q1 0q2":         {ClaimRequest{Lane: q, Until: ms(2 * time.Minute)}, 0, 9},
		"0q0":             {ClaimRequest{Lane: q, Until: all, After: ms(2 * time.Minute)}, 0, 9},
		"0e0 0e2":         {ClaimRequest{Lane: e, Until: all, Keys: []string{"k0"}}, 0, 9},
		"0e1 0e3":         {ClaimRequest{Lane: e, Until: all, OtherKeys: []string{"k0"}}, 0, 9},
		"0e0 0e1":         {ClaimRequest{Lane: e, Until: all, SendsLess: 2}, 0, 9},
		"0e0 0e1 0e2 0e3": {ClaimRequest{Lane: e, Until: all}, 0, 9},
		"":                {ClaimRequest{Lane: e, Until: all}, 0, 0},
	} {
		candidates, err := x.Candidates(t.Context(), ToSend, []ClaimRequest{tt.request}, []int{tt.skip}, []int{tt.limit}, start)
		check(t, err)
		if got := ids(candidates); got != expected {
			t.Errorf("Candidates for %+v: got %q, want %q", tt, got, expected)
		}
	}
	candidates, err := x.Candidates(t.Context(), ToSend, []ClaimRequest{{Lane: q, Until: all}, {Lane: e, Until: all}}, []int{0, 0}, []int{2, 2}, ms(time.Second))
	check(t, err)
	want(t, "candidates from two lanes", ids(candidates), "0q2 0q3 1e0 1e1")
	claimed, err := x.Claim(t.Context(), candidates, ms(time.Minute))
	check(t, err)
	want(t, "number of claimed tasks", len(claimed), "4")
	candidates, err = x.Candidates(t.Context(), ToSend, []ClaimRequest{{Lane: q, Until: all}}, []int{0}, []int{9}, ms(2*time.Second))
	check(t, err)
	want(t, "candidates during a claim", ids(candidates), "0q0 0q1")
	candidates, err = x.Candidates(t.Context(), ToSend, []ClaimRequest{{Lane: q, Until: all}}, []int{0}, []int{9}, ms(time.Minute))
	check(t, err)
	want(t, "candidates after the claim has expired", ids(candidates), "0q0 0q1 0q2 0q3")
}

// The size of a candidate is the size of its body and its headers.
func TestPickSizes(t *testing.T) {
	x := newTable(t)
	large := toQ("a", 0)
	large.Body, large.Headers = make([]byte, 1000), map[string]string{"a": "b"}
	x.insert(large)
	candidates, err := x.Candidates(t.Context(), ToSend, []ClaimRequest{{Lane: Lane{Queue: "q"}, Until: start}}, []int{0}, []int{1}, start)
	check(t, err)
	want(t, "size", candidates[0].Size, fmt.Sprint(1000+len(`{"a":"b"}`)))
}

// Settle changes a task only if it still has the claim and the version that was claimed.
func TestSettle(t *testing.T) {
	pauses := []time.Duration{time.Minute, time.Hour}
	for name, tt := range map[string]struct {
		before string // state of the row before the statement
		a      Assignment
		want   string // status, sends, failures, claimed_until, resend_at and last_error
	}{
		"sent":                {"attempts = 0", MarkSent(at(0), pauses), "pending 1 0 0 1800003660000 "},
		"sent again":          {"sends = 1", MarkSent(at(0), pauses), "pending 2 0 0 1800007200000 "},
		"sent late":           {"due_at = 0", MarkSent(at(0), pauses), "pending 1 0 0 1800000060000 "},
		"later resend kept":   {"resend_at = 1900000000000", MarkSent(at(0), pauses), "pending 1 0 0 1900000000000 "},
		"sent after failures": {"send_failures = 2, last_error = 'send'", MarkSent(at(0), pauses), "pending 1 0 0 1800003660000 "},
		"sent after attempts": {"attempts = 1, last_error = 'why'", MarkSent(at(0), pauses), "pending 1 0 0 1800003660000 why"},
		"given back":          {"send_failures = 1", GiveBack("full", at(0), at(time.Second)), "pending 0 2 1800000001000 0 full"},
		"postponed":           {"send_failures = 1", Postpone(at(time.Second)), "pending 0 1 1800000001000 0 "},
		"failed":              {"attempts = 0", FailUnsendable("large", at(0)), "failed 0 1 0 0 large"},
		"late":                {"attempts = 0", EndLate(at(0)), "expired 0 0 0 0 "},
	} {
		x := newTable(t)
		x.insert(toQ("a", time.Hour), toQ("other version", time.Hour), toQ("inserted again", time.Hour))
		x.set("a", "claimed_until = 9, "+tt.before)
		x.set("other version", "claimed_until = 9, version = 2")
		held, err := x.Settle(t.Context(), 1, 9, []string{"a", "other version", "inserted again"}, tt.a)
		check(t, err)
		want(t, name+": tasks held back", held, "[]")
		var status, lastError string
		var sends, failures, claimed, resend int64
		check(t, x.one(t.Context(),
			"SELECT status, sends, send_failures, claimed_until, COALESCE(resend_at, 0), COALESCE(last_error, '') FROM rabbitdelay_tasks WHERE id = 'a'", nil,
			&status, &sends, &failures, &claimed, &resend, &lastError))
		want(t, name, strings.Join([]string{status, fmt.Sprint(sends, failures, claimed, resend), lastError}, " "), tt.want)
		x.wantTask("other version", Pending, 2)
		x.wantTask("inserted again", Pending, 1)
		if got := x.get("inserted again"); got.Sends+got.Failures != 0 {
			t.Errorf("%s: the task that was inserted again has %d sends and %d failures, want 0 and 0", name, got.Sends, got.Failures)
		}
	}
	want(t, "ids of the others", others([]string{"a", "b", "c"}, []string{"b"}), "[a c]")
}

// A task that is not pending keeps its outcome, whatever a relay records.
func TestSettleLeavesOutcomes(t *testing.T) {
	for name, a := range map[string]Assignment{
		"given back": GiveBack("full", at(0), at(0)), "failed": FailUnsendable("large", at(0)), "late": EndLate(at(0)),
	} {
		x := newTable(t)
		x.insert(toQ("a", 0))
		x.end("a", Done, start)
		_, err := x.Settle(t.Context(), 1, 0, []string{"a"}, a)
		check(t, err)
		if got := x.get("a"); got.Status != Done || got.LastError != "" {
			t.Errorf(`%s: the task is %s with the error %q, want %s and ""`, name, got.Status, got.LastError, Done)
		}
	}
}

// Passages derives the progress of consumers from done tasks: when the last of their messages arrived, and when the
// last task that was sent only once was done.
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
	want(t, "overdue at the start", firsts, "map[]")
}

// A task that was sent again counts as settled when it is done, or when its handler has replaced it with a new version.
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
	want(t, "unsettled", unsettled(), "3")
	_, err := x.Insert(t.Context(), []*Task{toQ("recurs", time.Hour)}, start, Replace)
	check(t, err)
	want(t, "unsettled after one was replaced", unsettled(), "2")
	done, err := x.Done(t.Context(), Fence{ID: "done", Version: 1, Due: start}, start)
	check(t, err)
	want(t, "done", done, "true")
	want(t, "unsettled after one is done", unsettled(), "1")
	if n, err := x.CountUnsettled(t.Context(), nil); n != 0 || err != nil {
		t.Errorf("CountUnsettled without ids: got %d, error %v, want 0 and no error", n, err)
	}
}
