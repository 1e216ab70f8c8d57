package rows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// pages lists tasks in pages of the given size, and returns their ids in order.
func (x *table) pages(l Listing, page int) (ids []string) {
	x.t.Helper()
	for {
		l.Limit = page
		n := 0
		check(x.t, x.List(x.t.Context(), l, func(task *Task) bool {
			ids = append(ids, task.ID)
			l.After = l.Sort.Place(task)
			n++
			return true
		}))
		if n < page {
			return ids
		}
	}
}

// In each sort order, the pages of a list contain each task once. The orders by end time leave out tasks that have not
// ended. A filter can select tasks by their ids.
func TestListOrders(t *testing.T) {
	x := newTable(t)
	for i := range 12 { // three for each due time
		x.insert(toQ(fmt.Sprintf("%02d", i), time.Duration(i/3)*time.Hour))
		if i%2 == 0 { // two for each end time
			x.end(fmt.Sprintf("%02d", i), []string{Done, Failed, Cancelled}[i/2%3], ms(-time.Duration(i/4)*time.Minute))
		}
	}
	all := strings.Fields("00 01 02 03 04 05 06 07 08 09 10 11")
	backwards := slices.Clone(all)
	slices.Reverse(backwards)
	for expected, l := range map[string]Listing{
		fmt.Sprint(all):       {},
		fmt.Sprint(backwards): {Sort: Sort{Last: true}},
		"[08 10 04 06 00 02]": {Sort: Sort{Ended: true}},
		"[02 00 06 04 10 08]": {Sort: Sort{Ended: true, Last: true}},
		"[02 08]":             {Sort: Sort{Ended: true, Last: true}, Filter: Filter{Status: Failed, Queue: "q"}},
		"[]":                  {Sort: Sort{Ended: true, Last: true}, Filter: Filter{Status: Pending}},
		"[03 08]":             {Filter: Filter{IDs: []string{"08", "03", "none"}}},
		"[08 03]":             {Filter: Filter{IDs: []string{"08", "03"}}, Sort: Sort{Last: true}},
	} {
		for _, page := range []int{1, 2, 3, 100} {
			if got := fmt.Sprint(x.pages(l, page)); got != expected {
				t.Errorf("List of %+v in pages of %d: got %s, want %s", l, page, got, expected)
			}
		}
	}
	for limit, expected := range map[int64]string{10: "2", 1: "2", 0: "1"} {
		n, err := x.CountUpTo(t.Context(), Filter{IDs: []string{"01", "02"}}, limit)
		check(t, err)
		want(t, fmt.Sprintf("CountUpTo with the limit %d", limit), n, expected)
	}
}

// List returns each row once, even if many rows have a text value as their due time (which SQLite allows), so that they
// compare equal in the sort order.
func TestListOfTimelessRows(t *testing.T) {
	const timed, timeless = listPage + 3, 2*listPage + 7 // more than one page and more than two pages
	x := newTable(t)
	x.unchecked(func() {
		for i := range timed + timeless {
			due := any(int64(i))
			if i >= timed {
				due = fmt.Sprint("soon ", i%10)
			}
			x.must("INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', ?)", fmt.Sprint("t", i), due)
		}
	})
	const every = timed + timeless
	for _, l := range []Listing{
		{Limit: 1 << 20}, {Limit: 1 << 20, Filter: Filter{Status: Pending}}, {Limit: 1 << 20, Filter: Filter{Queue: "q"}}, {Limit: every - 1},
	} {
		seen := map[string]bool{}
		var after Place
		check(t, x.List(t.Context(), l, func(task *Task) bool {
			if seen[task.ID] {
				t.Errorf("List of %+v: task %s is listed twice, want once", l, task.ID)
			}
			seen[task.ID] = true
			if len(seen) == every-10 {
				after = l.Sort.Place(task)
			}
			return true
		}))
		if expected := min(l.Limit, every); len(seen) != expected {
			t.Errorf("List of %+v: got %d tasks, want %d", l, len(seen), expected)
		}
		l.After, l.Limit = after, 1<<20
		if rest := len(x.pages(l, 1<<20)); rest != 10 {
			t.Errorf("List of %+v: got %d tasks after the place, want 10", l, rest)
		}
	}
}

// List stops when its callback returns false, and leaves out bodies with WithoutBody.
func TestListEnds(t *testing.T) {
	x := newTable(t)
	for i := range 3 {
		task := toQ(fmt.Sprint(i), 0)
		task.Body, task.Tags = []byte("body"), []string{"tag"}
		x.insert(task)
	}
	for without, size := range map[bool]int{false: 4, true: 0} {
		n := 0
		check(t, x.List(t.Context(), Listing{Limit: 10, WithoutBody: without}, func(task *Task) bool {
			if len(task.Body) != size {
				t.Errorf("WithoutBody = %t: got a body of %d bytes, want %d", without, len(task.Body), size)
			}
			want(t, "tags", task.Tags, "[tag]")
			n++
			return n < 2
		}))
		want(t, "tasks read", n, "2")
	}
}

// Each condition of a filter selects the same tasks for lists, for counts and for bulk changes.
func TestFilter(t *testing.T) {
	x := newTable(t)
	for i := range 4 {
		task := toQ(fmt.Sprint("a", i), time.Duration(i)*time.Hour)
		if i%2 == 1 {
			task.Tags, task.UniqueKey, task.Headers = []string{"odd"}, fmt.Sprint("key", i), map[string]string{"tenant": "50%_~", "n": fmt.Sprint(i)}
		}
		x.insert(task)
	}
	x.insert(toE("b0", "k", time.Hour), toE("ü", "k", time.Hour), &Task{Content: Content{ID: "z", Queue: "other", DeliverAt: at(time.Hour)}})
	x.end("a0", Done, start)
	x.set("a1", "sends = 1, resend_at = 1")
	x.set("a3", `headers = '{"n": "3"}'`) // other programs write spaces like these
	for _, tt := range []struct {
		ids string
		f   Filter
	}{
		{"a0 a1 a2 a3 b0 z ü", Filter{}},
		{"a0 a1 a2 a3", Filter{Queue: "q"}},
		{"b0 ü", Filter{Exchange: "e"}},
		{"a0", Filter{Status: Done}},
		{"a1 a2 a3 b0 z ü", Filter{Status: Pending}},
		{"a2 a3", Filter{DueFrom: at(2 * time.Hour)}},
		{"a0", Filter{DueTo: at(time.Hour), Queue: "q"}},
		{"a1", Filter{DueFrom: at(time.Hour), DueTo: at(2 * time.Hour), Queue: "q"}},
		{"a0 a1 a2 a3", Filter{IDPrefix: "a"}},
		{"ü", Filter{IDPrefix: "ü"}},
		{"a1 a3", Filter{Tag: "odd"}},
		{"a3", Filter{UniqueKey: "key3"}},
		{"a1", Filter{Header: "tenant", HeaderValue: "50%_~"}},
		{"a3", Filter{Header: "n", HeaderValue: "3"}},
		{"", Filter{Header: "tenant", HeaderValue: "50%X~"}},
		{"a1", Filter{Sent: true}},
		{"a0 a1 a2 a3 z", Filter{ToQueue: true}},
		{"a0 a2 a3", Filter{Outside: &Span{ms(time.Hour), ms(time.Hour)}}},
		{"a1 z", Filter{IDs: []string{"z", "a1"}}},
		{"a1 b0 z ü", Filter{DueFrom: at(time.Hour), DueTo: at(time.Hour + 1)}},
	} {
		f, expected := tt.f, tt.ids
		ids := x.pages(Listing{Filter: f}, 100)
		slices.Sort(ids)
		if got := strings.Join(ids, " "); got != expected {
			t.Errorf("List with %+v: got %q, want %q", f, got, expected)
		}
		n, err := x.Count(t.Context(), f)
		check(t, err)
		if int(n) != len(ids) {
			t.Errorf("Count with %+v: got %d, want %d, as listed", f, n, len(ids))
		}
		chosen, err := x.Chosen(t.Context(), f, strings.Fields("a0 a1 a2 a3 b0 z ü none"))
		check(t, err)
		slices.Sort(chosen)
		if got := strings.Join(chosen, " "); got != expected {
			t.Errorf("Chosen with %+v: got %q, want %q", f, got, expected)
		}
	}
	if chosen, err := x.Chosen(t.Context(), Filter{}, nil); len(chosen) != 0 || err != nil {
		t.Errorf("Chosen without ids: got %v, error %v, want no ids and no error", chosen, err)
	}
}

// Pages of a bulk change follow one another in both directions.
func TestPages(t *testing.T) {
	x := newTable(t)
	for i := range 7 { // two for each due time
		x.insert(toQ(fmt.Sprint(i), time.Duration(i/2)*time.Hour))
	}
	for order, expected := range map[Order]string{Forwards: "[0 1 2 3 4 5 6]", Backwards: "[6 5 4 3 2 1 0]"} {
		for _, size := range []int{1, 2, 3, 10} {
			var ids []string
			for after := (Place{}); ; {
				page, err := x.Page(t.Context(), Filter{}, after, order, size)
				check(t, err)
				for _, s := range page {
					ids, after = append(ids, s.ID), s.Place
				}
				if len(page) < size {
					break
				}
			}
			want(t, fmt.Sprintf("pages of %d", size), ids, expected)
		}
	}
}

// Rows are locked, changed and deleted by their ids.
func TestBulk(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("a", 0), toQ("b", 0), toQ("c", 0))
	x.end("b", Done, start)
	locked, err := x.LockTasks(t.Context(), []string{"a", "b", "none"}, Exclusive)
	check(t, err)
	want(t, "locked", locked, "map[a:{1 pending} b:{1 done}]")
	n, err := x.ChangeAll(t.Context(), []string{"a", "b"}, DueAt(ms(time.Hour), start))
	check(t, err)
	want(t, "changed", n, "2")
	x.wantTask("b", Pending, 2)
	x.wantTask("c", Pending, 1)
	n, err = x.DeleteAll(t.Context(), []string{"a", "none"})
	check(t, err)
	want(t, "deleted", n, "1")
}

// TagNames returns each tag once, in sorted order. Tags are deleted with their tasks.
func TestTagNames(t *testing.T) {
	x := newTable(t)
	names := func(limit int) []string {
		list, err := x.TagNames(t.Context(), limit)
		check(t, err)
		return list
	}
	want(t, "no tags", names(3), "[]")
	for i := range 9 {
		task := toQ(fmt.Sprint(i), 0)
		task.Tags = []string{fmt.Sprint("tenant-", i/3), "a"}
		x.insert(task)
	}
	want(t, "limit 2", names(2), "[a tenant-0]")
	want(t, "all tags", names(100), "[a tenant-0 tenant-1 tenant-2]")
	_, err := x.DeleteAll(t.Context(), []string{"3", "4", "5"})
	check(t, err)
	want(t, "after a deletion", names(100), "[a tenant-0 tenant-2]")
}

func TestCounts(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("a", -time.Hour), toQ("b", time.Minute), toQ("c", time.Hour), toE("d", "k1", -time.Minute), toE("e", "k2", time.Hour),
		toE("f", "k1", 2*time.Hour))
	x.insert(toQ("g", -time.Hour), toQ("h", -2*time.Hour))
	x.end("g", Done, ms(time.Second))
	x.end("h", Failed, ms(time.Second))
	byQueue, err := x.CountByQueue(t.Context(), Filter{})
	check(t, err)
	want(t, "by queue", byQueue, "[{ pending 3} {q done 1} {q failed 1} {q pending 3}]")
	finished := func(status string, from, to time.Duration, limit int64) int64 {
		n, err := x.CountFinished(t.Context(), status, at(from), at(to), limit)
		check(t, err)
		return n
	}
	want(t, "done within a minute", finished(Done, 0, time.Minute, 10), "1")
	want(t, "done within a second", finished(Done, 0, time.Second, 10), "0")
	want(t, "done, with the limit 0", finished(Done, 0, time.Minute, 0), "1")
	oldest, err := x.Oldest(t.Context(), start)
	check(t, err)
	want(t, "the oldest", oldest.Sub(at(0)), "-1h0m0s")
	if oldest, err = x.Oldest(t.Context(), ms(-2*time.Hour)); !oldest.IsZero() || err != nil {
		t.Errorf("Oldest without a matching task: got %v, error %v, want the zero time and no error", oldest, err)
	}
	n, err := x.CountPending(t.Context(), start, ms(time.Hour), 10)
	check(t, err)
	want(t, "pending within an hour", n, "3")
	n, err = x.CountPending(t.Context(), start, ms(time.Hour), 2)
	check(t, err)
	want(t, "pending, with the limit 2", n, "2")
	x.set("a", "resend_at = 1")
	n, err = x.CountUnsent(t.Context(), Lane{Queue: "q"}, 0, ms(time.Hour), 10)
	check(t, err)
	want(t, "unsent", n, "2")
	keys := map[string]int64{}
	check(t, x.CountKeys(t.Context(), Lane{Exchange: "e"}, 2, func(key string, pending int64) { keys[key] = pending }))
	want(t, "routing keys of the first two tasks", keys, "map[k1:1 k2:1]")
	bins := map[int]int64{}
	check(t, x.Bins(t.Context(), Filter{Status: Pending, DueFrom: at(0)}, start, time.Hour.Milliseconds(), func(i int, n int64) { bins[i] = n }))
	want(t, "bins", bins, "map[0:1 1:2 2:1]")
}
