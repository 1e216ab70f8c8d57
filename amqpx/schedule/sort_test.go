package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A list in each order, page by page, has each task once; those by end leave out what has
// not ended. Ids choose tasks, also where they are many.
func TestListSorted(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { check(t, db.Close()) }()
	base := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for i := range 12 {
		status, ended := "pending", any(nil)
		if i%2 == 0 {
			status, ended = []string{"done", "failed", "cancelled"}[i/2%3], base.Add(-time.Duration(i/4)*time.Minute).UnixMilli() // two at each instant
		}
		_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at) VALUES (?, 'q', ?, ?, ?)", fmt.Sprintf("t%02d", i), base.Add(time.Duration(i/3)*time.Hour).UnixMilli(), status, ended)
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
		for _, page := range []int{1, 2, 3, 100} {
			if got := list(f, page); got != want {
				t.Errorf("%+v by %d: %s, expected %s", f, page, got, want)
			}
		}
	}
	if n, err := s.CountUpTo(t.Context(), NoTx, Filter{IDs: []string{"t01", "t02"}}, 10); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []Filter{{Sort: "nothing"}, {IDs: make([]string, 1001)}} {
		for _, err := range s.List(t.Context(), NoTx, bad) {
			if err == nil || !strings.Contains(err.Error(), "expected") {
				t.Errorf("%v", err)
			}
		}
	}
}

func TestTags(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { check(t, db.Close()) }()
	if got, err := s.Tags(t.Context(), NoTx, 3); len(got) != 0 || err != nil {
		t.Errorf("without any: %q, %v", got, err)
	}
	for i := range 9 {
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint(i), Queue: "q", DeliverAt: time.Now().Add(time.Hour), Tags: []string{fmt.Sprint("tenant-", i/3), "a"}}))
	}
	for limit, want := range map[int]string{2: "[a tenant-0]", 100: "[a tenant-0 tenant-1 tenant-2]"} {
		if got, err := s.Tags(t.Context(), NoTx, limit); fmt.Sprint(got) != want || err != nil {
			t.Errorf("%d: %v, %v", limit, got, err)
		}
	}
}

// The last run is the last occurrence that came to an end, of that recurring task alone.
func TestLastRuns(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { check(t, db.Close()) }()
	names := []string{}
	for i := range 120 {
		names = append(names, fmt.Sprintf("job-%d", i))
	}
	for _, x := range [][2]string{{"job-1@20261124T020000Z", "done"}, {"job-1@20261125T020000Z", "failed"}, {"job-1@20261125T030000Z", "cancelled"}, {"job-1@20261126T020000Z", "pending"}, {"job-11@20261127T020000Z", "done"}, {"job-1", "done"}, {"job-1A", "done"}} {
		_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, last_error) VALUES (?, 'q', 1767225600000, ?, 1767225600005, 'why')", x[0], x[1])
		check(t, err)
	}
	runs, err := s.Schedules().LastRuns(t.Context(), NoTx, names)
	check(t, err)
	if x := runs["job-1"]; len(runs) != 2 || x.ID != "job-1@20261125T020000Z" || x.Status != StatusFailed || x.LastError != "why" || runs["job-11"].ID != "job-11@20261127T020000Z" {
		t.Errorf("%+v", runs)
	}
	if runs, err := s.Schedules().LastRuns(t.Context(), NoTx, nil); len(runs) != 0 || err != nil {
		t.Errorf("of none: %v, %v", runs, err)
	}
}
