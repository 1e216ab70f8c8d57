package rows

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// keyed returns a task with the unique key k.
func keyed(id string) *Task {
	task := toQ(id, 0)
	task.UniqueKey = "k"
	return task
}

// A task is inserted unless its key has a pending task, or its id exists.
func TestInsertUnique(t *testing.T) {
	for name, tt := range map[string]struct {
		id       string
		status   string // status of task a, which has the key
		inserted string
	}{
		"a pending one":   {"b", Pending, "false"},
		"a running one":   {"b", Running, "true"},
		"a done one":      {"b", Done, "true"},
		"a cancelled one": {"b", Cancelled, "true"},
		"its id":          {"a", Done, "false"},
	} {
		x := newTable(t)
		x.insert(keyed("a"))
		x.set("a", "status = ?, finished_at = 1", tt.status)
		inserted, err := x.InsertUnique(t.Context(), keyed(tt.id), start)
		check(t, err)
		want(t, "beside "+name, inserted, tt.inserted)
		h, found, err := x.Holder(t.Context(), "k", start)
		check(t, err)
		want(t, "a holder beside "+name, found, strconv.FormatBool(tt.status == Pending || tt.inserted == "true"))
		if found && tt.inserted == "true" {
			want(t, "the holder beside "+name, h.ID, tt.id)
		}
	}
}

// The pending task with a key is replaced or changed only if it has not changed since it was read.
func TestHolder(t *testing.T) {
	x := newTable(t)
	first := keyed("a")
	first.Tags, first.ExpiresAfter = []string{"old"}, time.Minute
	x.insert(first)
	h, _, err := x.Holder(t.Context(), "k", ms(time.Minute))
	check(t, err)
	want(t, "the holder", h, fmt.Sprint(Holder{ID: "a", Version: 1, Created: start, Due: start, Over: true}))
	changed, err := x.ChangeHolder(t.Context(), h, DueAt(ms(time.Hour), start))
	check(t, err)
	want(t, "moved", changed, "true")
	changed, err = x.ChangeHolder(t.Context(), h, DueAt(ms(2*time.Hour), start))
	check(t, err)
	want(t, "moved as it was", changed, "false")
	h, _, err = x.Holder(t.Context(), "k", start)
	check(t, err)
	other := keyed("b")
	other.Tags, other.Body = []string{"new"}, []byte("new")
	changed, err = x.ChangeHolder(t.Context(), h, other.ReplaceBy(h, start-1))
	check(t, err)
	want(t, "replaced", changed, "true")
	check(t, x.RewriteTags(t.Context(), h, other))
	expected := &Task{
		Content: Content{ID: "a", Queue: "q", DeliverAt: at(0), Body: []byte("new"), UniqueKey: "k", Tags: []string{"new"}},
		Version: 3, Status: Pending, CreatedAt: at(time.Millisecond), UpdatedAt: at(time.Millisecond),
	}
	if got := x.get("a"); !equal(got, expected) {
		t.Errorf("got %+v, want %+v", got, expected)
	}
	if _, found, err := x.Holder(t.Context(), "none", start); found || err != nil {
		t.Errorf("Holder of a key that no task has: found = %v, %v, want false and no error", found, err)
	}
}

// Touching a task changes only its update time.
func TestTouch(t *testing.T) {
	x := newTable(t)
	x.insert(keyed("a"))
	h, _, err := x.Holder(t.Context(), "k", start)
	check(t, err)
	_, err = x.ChangeHolder(t.Context(), h, Touch(start-9))
	check(t, err)
	want(t, "by a clock that is behind", x.get("a").UpdatedAt.UnixMilli(), fmt.Sprint(start+1))
	_, err = x.ChangeHolder(t.Context(), h, Touch(ms(time.Hour)))
	check(t, err)
	want(t, "later", x.get("a").UpdatedAt.UnixMilli(), fmt.Sprint(ms(time.Hour)))
	x.wantTask("a", Pending, 1)
}

// A new task with a key is refused while another task with the key is running, or for some time after that task was
// done.
func TestRecentOf(t *testing.T) {
	x := newTable(t)
	for i, id := range []string{"first", "last", "failed"} {
		x.insert(keyed(id))
		x.end(id, []string{Done, Done, Failed}[i], ms(time.Duration(i)*time.Minute))
	}
	recent := func(after int64) string {
		r, found, err := x.RecentOf(t.Context(), "k", after)
		check(t, err)
		return fmt.Sprint(r, found)
	}
	want(t, "done", recent(start), fmt.Sprintf("{last %d} true", ms(time.Minute)))
	want(t, "done longer ago", recent(ms(time.Minute)), "{ 0} false")
	x.insert(keyed("running"))
	x.set("running", "status = 'running'")
	want(t, "running", recent(ms(time.Minute)), "{running 0} true")
}

// Of several tasks that are to become pending again, one task with each key does so, unless another task with the key
// is pending.
func TestKeys(t *testing.T) {
	x := newTable(t)
	free, err := x.KeysFree(t.Context(), []string{"none"})
	check(t, err)
	want(t, "no tasks", free, "[none]")
	for _, id := range []string{"a1", "a2", "b1", "plain"} {
		task := toQ(id, 0)
		if id != "plain" {
			task.UniqueKey = id[:1]
		}
		x.insert(task)
		x.end(id, Failed, start)
	}
	ids := []string{"a1", "a2", "b1", "plain"}
	free, err = x.KeysFree(t.Context(), ids)
	check(t, err)
	want(t, "nothing is pending", free, "[a1 b1 plain]")
	pending := toQ("b2", 0)
	pending.UniqueKey = "b"
	x.insert(pending)
	free, err = x.KeysFree(t.Context(), ids)
	check(t, err)
	want(t, "one is pending", free, "[a1 plain]")
	for id, expected := range map[string]string{"a1": "a:", "b1": "b:b2", "b2": "b:", "plain": ":", "none": ":"} {
		key, holder, err := x.KeyTaken(t.Context(), id)
		check(t, err)
		want(t, id, key+":"+holder, expected)
	}
	for id, expected := range map[string]string{"a1": "true", "none": "false"} {
		has, err := x.HasID(t.Context(), id)
		check(t, err)
		want(t, id, has, expected)
	}
	_, err = x.ChangeAll(t.Context(), []string{"b2"}, GiveWay("because", start))
	check(t, err)
	got := x.get("b2")
	want(t, "one that gave way", got.Status+": "+got.LastError, "cancelled: because")
}

// Tags are also written for a task that was inserted with a unique key.
func TestWriteTags(t *testing.T) {
	x := newTable(t)
	task := keyed("a")
	task.Tags = []string{"t"}
	_, err := x.InsertUnique(t.Context(), task, start)
	check(t, err)
	check(t, x.WriteTags(t.Context(), task))
	want(t, "tags", x.get("a").Tags, "[t]")
}
