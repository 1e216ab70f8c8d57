package rows

import (
	"cmp"
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

// InsertUnique inserts a task unless another task with its unique key is pending, or its id exists.
func TestInsertUnique(t *testing.T) {
	for name, tt := range map[string]struct {
		id       string
		status   string // status of task a, which has the key
		inserted string
	}{
		"a pending task":     {"b", Pending, "false"},
		"a running task":     {"b", Running, "true"},
		"a done task":        {"b", Done, "true"},
		"a cancelled task":   {"b", Cancelled, "true"},
		"a task with its id": {"a", Done, "false"},
	} {
		x := newTable(t)
		x.insert(keyed("a"))
		x.set("a", "status = ?, finished_at = 1", tt.status)
		inserted, err := x.InsertUnique(t.Context(), keyed(tt.id), start)
		check(t, err)
		want(t, "inserted after "+name, inserted, tt.inserted)
		h, found, err := x.Holder(t.Context(), "k", start)
		check(t, err)
		want(t, "the key has a pending task after "+name, found, strconv.FormatBool(tt.status == Pending || tt.inserted == "true"))
		if found && tt.inserted == "true" {
			want(t, "the pending task of the key after "+name, h.ID, tt.id)
		}
	}
}

// The pending task with a unique key can be changed or replaced only if it has not changed since it was read.
func TestHolder(t *testing.T) {
	x := newTable(t)
	first := keyed("a")
	first.Tags, first.ExpiresAfter = []string{"old"}, time.Minute
	x.insert(first)
	h, _, err := x.Holder(t.Context(), "k", ms(time.Minute))
	check(t, err)
	want(t, "the pending task of the key", h, fmt.Sprint(Holder{ID: "a", Version: 1, Created: start, Due: start, Over: true}))
	changed, err := x.ChangeHolder(t.Context(), h, DueAt(ms(time.Hour), start))
	check(t, err)
	want(t, "rescheduled", changed, "true")
	changed, err = x.ChangeHolder(t.Context(), h, DueAt(ms(2*time.Hour), start))
	check(t, err)
	want(t, "rescheduled with an outdated version", changed, "false")
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
		t.Errorf("the pending task after it was replaced: got %+v, want %+v", got, expected)
	}
	if _, found, err := x.Holder(t.Context(), "none", start); found || err != nil {
		t.Errorf("Holder of a key without a task: got found = %t, error %v, want false and no error", found, err)
	}
}

// PushBack changes only a pending task that has not expired, and only if it is then due later.
func TestPushBack(t *testing.T) {
	hour := time.Hour.Milliseconds()
	later := Push{Key: "k", Due: ms(time.Minute), Wait: hour}
	for name, tt := range map[string]struct {
		push  Push
		state string // assignment to the columns of the pending task
		want  string
	}{
		"a later time":              {later, "attempts = 2", "a 1m0s"},
		"the longest wait":          {Push{Key: "k", Due: ms(2 * time.Hour), Wait: hour}, "", "a 1h0m0s"},
		"the same time":             {Push{Key: "k", Due: start, Wait: hour}, "", "- 0s"},
		"a longest wait that ended": {later, "created_at = created_at - 3600000", "- 0s"},
		"another key":               {Push{Key: "other", Due: later.Due, Wait: hour}, "", "- 0s"},
		"the excepted task":         {Push{Key: "k", Due: later.Due, Wait: hour, Except: "a"}, "", "- 0s"},
		"another excepted task":     {Push{Key: "k", Due: later.Due, Wait: hour, Except: "b"}, "", "a 1m0s"},
		"an expired task":           {later, "expires_after = 1", "- 0s"},
		"a running task":            {later, "status = 'running'", "- 0s"},
	} {
		x := newTable(t)
		x.insert(keyed("a"))
		x.set("a", cmp.Or(tt.state, "attempts = 0"))
		id, due, err := x.PushBack(t.Context(), tt.push, ms(time.Second))
		check(t, err)
		row := x.get("a")
		want(t, name, fmt.Sprint(cmp.Or(id, "-"), " ", row.DeliverAt.Sub(at(0))), tt.want)
		if id == "" {
			want(t, "version, after "+name, row.Version, "1")
			continue
		}
		want(t, "returned due time, after "+name, due, fmt.Sprint(row.DeliverAt.UnixMilli()))
		want(t, "version, attempts and update time, after "+name, fmt.Sprint(row.Version, row.Attempts, row.UpdatedAt.Sub(at(0))), "2 0 1s")
	}
}

// Touch changes only the update time of a task, which always increases.
func TestTouch(t *testing.T) {
	x := newTable(t)
	x.insert(keyed("a"))
	h, _, err := x.Holder(t.Context(), "k", start)
	check(t, err)
	_, err = x.ChangeHolder(t.Context(), h, Touch(start-9))
	check(t, err)
	want(t, "update time with a clock that is behind", x.get("a").UpdatedAt.UnixMilli(), fmt.Sprint(start+1))
	_, err = x.ChangeHolder(t.Context(), h, Touch(ms(time.Hour)))
	check(t, err)
	want(t, "update time an hour later", x.get("a").UpdatedAt.UnixMilli(), fmt.Sprint(ms(time.Hour)))
	x.wantTask("a", Pending, 1)
}

// RecentOf finds the task because of which a new task with the same key must be refused: one that is running, or the
// last one that was done after the given time.
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
	want(t, "done before the given time", recent(ms(time.Minute)), "{ 0} false")
	x.insert(keyed("running"))
	x.set("running", "status = 'running'")
	want(t, "running", recent(ms(time.Minute)), "{running 0} true")
}

// If several tasks are to become pending again, only one task for each unique key does, and none if another task with
// the key is pending.
func TestKeys(t *testing.T) {
	x := newTable(t)
	free, err := x.KeysFree(t.Context(), []string{"none"})
	check(t, err)
	want(t, "KeysFree without tasks", free, "[none]")
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
	want(t, "KeysFree if no task is pending", free, "[a1 b1 plain]")
	pending := toQ("b2", 0)
	pending.UniqueKey = "b"
	x.insert(pending)
	free, err = x.KeysFree(t.Context(), ids)
	check(t, err)
	want(t, "KeysFree if a task with the key b is pending", free, "[a1 plain]")
	for id, expected := range map[string]string{"a1": "a:", "b1": "b:b2", "b2": "b:", "plain": ":", "none": ":"} {
		key, holder, err := x.KeyTaken(t.Context(), id)
		check(t, err)
		want(t, "KeyTaken of "+id, key+":"+holder, expected)
	}
	for id, expected := range map[string]string{"a1": "true", "none": "false"} {
		has, err := x.HasID(t.Context(), id)
		check(t, err)
		want(t, "HasID of "+id, has, expected)
	}
	_, err = x.ChangeAll(t.Context(), []string{"b2"}, GiveWay("because", start))
	check(t, err)
	got := x.get("b2")
	want(t, "the task that gave way", got.Status+": "+got.LastError, "cancelled: because")
}

// WriteTags writes the tags of a task that was inserted with InsertUnique.
func TestWriteTags(t *testing.T) {
	x := newTable(t)
	task := keyed("a")
	task.Tags = []string{"t"}
	_, err := x.InsertUnique(t.Context(), task, start)
	check(t, err)
	check(t, x.WriteTags(t.Context(), task))
	want(t, "tags", x.get("a").Tags, "[t]")
}
