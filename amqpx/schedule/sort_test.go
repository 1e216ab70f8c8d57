package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// In each sort order, the pages of a list contain each task once. The orders by end time leave out tasks that have not
// ended. A filter can select tasks by their ids.
func TestListSorted(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { check(t, db.Close()) }()
	base := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for i := range 12 {
		status, ended := "pending", any(nil)
		if i%2 == 0 {
			status, ended = []string{"done", "failed", "cancelled"}[i/2%3], base.Add(-time.Duration(i/4)*time.Minute).UnixMilli() // two for each end time
		}
		_, err := db.ExecContext(t.Context(),
			"INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at) VALUES (?, 'q', ?, ?, ?)",
			fmt.Sprintf("t%02d", i), base.Add(time.Duration(i/3)*time.Hour).UnixMilli(), status, ended)
		check(t, err)
	}
	list := func(f Filter, page int) string {
		var ids []string
		for {
			f.Limit = page
			n := 0
			for x, err := range s.List(t.Context(), NoTx, f) {
				check(t, err)
				ids = append(ids, strings.TrimPrefix(x.ID, "t"))
				f.After = f.CursorOf(x)
				n++
			}
			if n < page {
				return strings.Join(ids, " ")
			}
		}
	}
	const all = "00 01 02 03 04 05 06 07 08 09 10 11"
	backwards := strings.Fields(all)
	slices.Reverse(backwards)
	for want, f := range map[string]Filter{
		all:                          {},
		strings.Join(backwards, " "): {Sort: SortDueLast},
		"08 10 04 06 00 02":          {Sort: SortEnded},
		"02 00 06 04 10 08":          {Sort: SortEndedLast},
		"02 08":                      {Sort: SortEndedLast, Status: StatusFailed, Queue: "q"},
		"":                           {Sort: SortEndedLast, Status: StatusPending},
		"03 08":                      {IDs: []string{"t08", "t03", "none"}},
		"08 03":                      {IDs: []string{"t08", "t03"}, Sort: SortDueLast},
	} {
		if got := list(f, 5); got != want {
			t.Errorf("List with %+v: got %q, want %q", f, got, want)
		}
	}
	if n, err := s.CountUpTo(t.Context(), NoTx, Filter{IDs: []string{"t01", "t02"}}, 10); n != 2 || err != nil {
		t.Errorf("CountUpTo of two ids: got %d, error %v, want 2 and no error", n, err)
	}
	for _, bad := range []Filter{{Sort: "nothing"}, {IDs: make([]string, 1001)}, {After: "x"}} {
		for _, err := range s.List(t.Context(), NoTx, bad) {
			if err == nil || !strings.Contains(err.Error(), "expected") {
				t.Errorf(`List with %.100v: got %v, want an error with "expected"`, bad, err)
			}
		}
	}
}

// LastRuns accepts any number of names, including none.
func TestLastRuns(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { check(t, db.Close()) }()
	var names []string
	for i := range 120 {
		names = append(names, fmt.Sprintf("job-%d", i))
	}
	for _, id := range []string{"job-1@20261125T020000Z", "job-119@20261127T020000Z"} {
		_, err := db.ExecContext(t.Context(),
			"INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, last_error) VALUES (?, 'q', 1767225600000, 'failed', 1767225600005, 'why')",
			id)
		check(t, err)
	}
	runs, err := s.Recurring().LastRuns(t.Context(), NoTx, names)
	check(t, err)
	if len(runs) != 2 {
		t.Errorf("LastRuns: got %d runs, want 2: %+v", len(runs), runs)
	}
	if x := runs["job-1"]; x.Status != StatusFailed || x.LastError != "why" {
		t.Errorf(`LastRuns, job-1: got %+v, want Status = %v and LastError = "why"`, x, StatusFailed)
	}
	if x := runs["job-119"]; x.ID != "job-119@20261127T020000Z" {
		t.Errorf(`LastRuns, job-119: got %+v, want ID = "job-119@20261127T020000Z"`, x)
	}
	runs, err = s.Recurring().LastRuns(t.Context(), NoTx, nil)
	check(t, err)
	if len(runs) != 0 {
		t.Errorf("LastRuns of no names: got %v, want none", runs)
	}
}
