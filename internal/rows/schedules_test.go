package rows

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// full returns a schedule in which every column has a value.
func full() *Schedule {
	return &Schedule{
		Name: "nightly", Cron: "@daily", TimeZone: "Europe/Berlin", Start: at(0), End: at(time.Hour), Jitter: time.Minute, Misfire: "all",
		MisfireLimit: 7, Overlap: "allow", Origin: "file",
		Task: Task{Content: Content{
			Exchange: "e", RoutingKey: "k", Body: []byte{0, 255}, ContentType: "text/plain", Type: "t",
			CorrelationID: "c", Priority: 3, ExpiresAfter: time.Minute, Headers: map[string]string{"h": "v"},
			Tags: []string{"b", "a"},
		}},
	}
}

func (x *table) insertSchedule(s *Schedule) {
	x.t.Helper()
	inserted, err := x.InsertSchedule(x.t.Context(), s, start)
	check(x.t, err)
	want(x.t, s.Name+" inserted", inserted, "true")
}

func (x *table) schedule(name string) *Schedule {
	x.t.Helper()
	s, err := x.Schedule(x.t.Context(), name)
	check(x.t, err)
	return s
}

// every returns a schedule with an interval.
func every(name string) *Schedule {
	return &Schedule{
		Name: name, Every: time.Hour, TimeZone: "UTC", Misfire: "once", MisfireLimit: 1, Overlap: "allow",
		Task: Task{Content: Content{Queue: "q", Body: []byte("x")}},
	}
}

// All fields of a schedule that was inserted or written can be read again.
func TestSchedule(t *testing.T) {
	x := newTable(t)
	x.insertSchedule(full())
	expected := full()
	expected.Version, expected.CreatedAt, expected.UpdatedAt, expected.PlanAt, expected.BodySize = 1, at(0), at(0), time.UnixMilli(0), 2
	if got := x.schedule("nightly"); !equal(got, expected) {
		t.Errorf("the inserted schedule: got %+v, want %+v", got, expected)
	}
	inserted, err := x.InsertSchedule(t.Context(), every("nightly"), start)
	check(t, err)
	want(t, "inserted a second time", inserted, "false")

	locked, err := x.LockSchedule(t.Context(), "nightly", ms(time.Second))
	check(t, err)
	want(t, "the version after LockSchedule", locked.Version, "2")
	check(t, x.WriteSchedule(t.Context(), every("nightly")))
	expected = every("nightly")
	expected.Version, expected.CreatedAt, expected.UpdatedAt, expected.PlanAt, expected.BodySize = 2, at(0), at(time.Second), time.UnixMilli(0), 1
	if got := x.schedule("nightly"); !equal(got, expected) {
		t.Errorf("the schedule after WriteSchedule: got %+v, want %+v", got, expected)
	}

	check(t, x.PauseSchedule(t.Context(), "nightly", true))
	want(t, "paused", x.schedule("nightly").Paused, "true")
	check(t, x.PauseSchedule(t.Context(), "nightly", false))
	want(t, "paused after it was resumed", x.schedule("nightly").Paused, "false")
	check(t, x.DeleteSchedule(t.Context(), "nightly"))
	if _, err := x.Schedule(t.Context(), "nightly"); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("Schedule of a deleted recurring task: got %v, want sql.ErrNoRows", err)
	}
}

func TestSchedules(t *testing.T) {
	x := newTable(t)
	for i := range 5 {
		s := full()
		s.Name, s.Origin = fmt.Sprint(i), []string{"file", "code"}[i%2]
		x.insertSchedule(s)
	}
	var names []string
	list, err := x.Schedules(t.Context(), "1", 2)
	check(t, err)
	for _, s := range list {
		names = append(names, s.Name)
		want(t, "length of the body in a list", len(s.Task.Body), "0")
		want(t, "BodySize in a list", s.BodySize, "2")
	}
	want(t, "a page", names, "[2 3]")
	names, err = x.ScheduleNames(t.Context(), "file")
	check(t, err)
	want(t, "names with the origin file", names, "[0 2 4]")
}

// Invalid rows from other programs are read as far as possible, with the invalid field.
func TestForeignSchedules(t *testing.T) {
	for column, tt := range map[string]struct {
		value any
		bad   string
	}{
		"every_ms":  {int64(9223372036854775807), "every: every_ms 9223372036854775807 and jitter_ms 0, expected at most"},
		"jitter_ms": {MaxJitter.Milliseconds() + 1, "every: every_ms 3600000 and jitter_ms 86400001, expected at most"},
		"headers":   {"[1]", "headers: column headers: expected a JSON object of strings"},
		"tags":      {"{}", "tags: column tags: expected a JSON array of strings"},
	} {
		x := newTable(t)
		x.insertSchedule(every("a"))
		x.must("UPDATE rabbitdelay_schedules SET "+column+" = ? WHERE name = 'a'", tt.value)
		got := x.schedule("a")
		if got.Bad == nil || !strings.Contains(got.Bad.Error(), tt.bad) {
			t.Errorf("invalid %s: got %v, want an error with %q", column, got.Bad, tt.bad)
		}
	}
	x := newTable(t)
	x.insertSchedule(every("a"))
	for _, null := range []string{"headers = 'null'", `headers = '{"a":null}'`, "headers = NULL, tags = '[null]'"} {
		x.must("UPDATE rabbitdelay_schedules SET " + null)
		if got := x.schedule("a"); got.Bad == nil {
			t.Errorf("a row with %s: got no error, want one", null)
		}
	}
}

// ClaimSchedule returns the row that has been due for planning the longest, except those that the relay skips. A
// planned row is returned again when it is next due for planning.
func TestClaimSchedule(t *testing.T) {
	x := newTable(t)
	claim := func(now int64, except ...string) string {
		t.Helper()
		s, err := x.ClaimSchedule(t.Context(), now, except)
		check(t, err)
		if s == nil {
			return "none"
		}
		return s.Name
	}
	next := func(except ...string) string {
		t.Helper()
		at, found, err := x.NextPlan(t.Context(), except)
		check(t, err)
		return fmt.Sprint(at, found)
	}
	want(t, "claimed from an empty table", claim(start), "none")
	want(t, "next plan of an empty table", next(), "0 false")
	for i, name := range []string{"second", "first", "later"} {
		x.insertSchedule(every(name))
		x.must("UPDATE rabbitdelay_schedules SET plan_at = ? WHERE name = ?", start+[]int64{2, 1, 1000}[i], name)
	}
	want(t, "claimed", claim(start+2), "first")
	want(t, "claimed, skipping the first", claim(start+2, "first"), "second")
	want(t, "claimed, skipping both", claim(start+2, "first", "second"), "none")
	want(t, "next plan, skipping both", next("first", "second"), fmt.Sprint(start+1000, " true"))

	s := x.schedule("first")
	s.NextAt, s.LastAt, s.SkippedAt, s.LastError = at(3), at(2*time.Millisecond), at(time.Millisecond), "why"
	check(t, x.Planned(t.Context(), s, start+5000))
	got := x.schedule("first")
	want(t, "Planned", got.Planned, "1")
	want(t, "NextAt", got.NextAt.UnixMilli(), fmt.Sprint(start+1))
	want(t, "LastAt", got.LastAt.UnixMilli(), fmt.Sprint(start+2))
	want(t, "SkippedAt", got.SkippedAt.UnixMilli(), fmt.Sprint(start+1))
	want(t, "LastError", got.LastError, "why")
	want(t, "claimed after the first was planned", claim(start+2), "second")

	check(t, x.Blame(t.Context(), &Schedule{Name: "second", Version: 1}, errors.New("refused"), at(time.Hour)))
	check(t, x.Blame(t.Context(), &Schedule{Name: "later", Version: 9}, errors.New("refused"), at(time.Hour)))
	want(t, "LastError of the blamed version", x.schedule("second").LastError, "refused")
	want(t, "LastError if another version was blamed", x.schedule("later").LastError, "")
	want(t, "claimed after the blame", claim(start+2), "none")
}

// Withdraw cancels the tasks of a schedule that are not due yet, and changes no other tasks. It returns their versions,
// and also those of tasks that were withdrawn earlier.
func TestWithdraw(t *testing.T) {
	x := newTable(t)
	for id, due := range map[string]time.Duration{"a@1": -1, "a@2": time.Hour, "a@3": time.Hour, "a@4": time.Hour, "a": time.Hour,
		"b@9": time.Hour, "ab@9": time.Hour} {
		x.insert(toQ(id, due))
	}
	x.set("a@3", "status = 'cancelled', finished_at = 1, last_error = 'by hand'")
	x.set("a@4", "status = 'cancelled', finished_at = 1, last_error = 'changed', version = 5")
	versions, err := x.Withdraw(t.Context(), "a", "a@1", "changed", start)
	check(t, err)
	want(t, "withdrawn", versions, "map[a@2:2 a@4:5]")
	for _, id := range []string{"a@1", "a", "b@9", "ab@9"} {
		x.wantTask(id, Pending, 1)
	}
	versions, err = x.Withdraw(t.Context(), "a", "a@3", "changed", start)
	check(t, err)
	want(t, "withdrawn after a@3", versions, "map[a@4:5]")
}

// Missed returns the due tasks of a schedule that no handler has started to process.
func TestMissed(t *testing.T) {
	x := newTable(t)
	for _, id := range []string{"a@0", "a@1", "a@2", "a@3", "a@4", "a@5", "b@1"} {
		x.insert(toQ(id, 0))
	}
	x.set("a@2", "attempts = 1")
	x.end("a@3", Done, start)
	_, err := x.LockRecord(t.Context(), EffectKey{"a@4", start, 1, "q"}, start)
	check(t, err)
	x.set("a@5", "due_at = due_at + 1")
	ids, err := x.Missed(t.Context(), "a", "a@1", start)
	check(t, err)
	want(t, "missed", ids, "[a@1]")
	check(t, x.LeaveOut(t.Context(), "a@1", "left out", start))
	check(t, x.LeaveOut(t.Context(), "a@3", "left out", start))
	got := x.get("a@1")
	want(t, "the task that was left out", got.Status+": "+got.LastError, "cancelled: left out")
	x.wantTask("a@3", Done, 1)
	check(t, x.Delete(t.Context(), "a@1"))
	status, err := x.Status(t.Context(), "a@1")
	check(t, err)
	want(t, "status of a deleted task", status, "")
}

// An occurrence's content is that of its schedule, and the occurrence is inserted once.
func TestInsertOccurrence(t *testing.T) {
	x := newTable(t)
	s := full()
	x.insertSchedule(s)
	for _, expected := range []string{"true", "false"} {
		inserted, err := x.InsertOccurrence(t.Context(), s, "nightly@1", ms(time.Hour), 4, start)
		check(t, err)
		want(t, "inserted", inserted, expected)
	}
	check(t, x.TagOccurrences(t.Context(), s, []string{"nightly@1"}))
	check(t, x.TagOccurrences(t.Context(), s, nil))
	expected := s.Task
	expected.ID, expected.DeliverAt, expected.Version, expected.Status = "nightly@1", at(time.Hour), 4, Pending
	expected.CreatedAt, expected.UpdatedAt, expected.Tags = at(0), at(0), []string{"a", "b"}
	if got := x.get("nightly@1"); !equal(*got, expected) {
		t.Errorf("the task of the occurrence: got %+v, want %+v", *got, expected)
	}
}

// The last run of a schedule is its last occurrence that has run and ended.
func TestLastRuns(t *testing.T) {
	x := newTable(t)
	for id, status := range map[string]string{
		"job-1@20261124T020000Z": Done, "job-1@20261125T020000Z": Failed, "job-1@20261125T030000Z": Cancelled, "job-1@20261126T020000Z": Pending,
		"job-11@20261127T020000Z": Done, "job-1": Done, "job-1A": Done, "job-2@20261127T020000Z": Expired,
	} {
		task := toQ(id, 0)
		task.Body = []byte("x")
		x.insert(task)
		x.set(id, "status = ?, finished_at = 1", status)
	}
	runs, err := x.LastRuns(t.Context(), []string{"job-1", "job-2", "job-3", "job-11"})
	check(t, err)
	var got []string
	for _, run := range runs {
		got = append(got, run.ID+" "+run.Status)
		want(t, "length of the body of a run", len(run.Body), "0")
	}
	want(t, "runs", strings.Join(got, ", "), "job-1@20261125T020000Z failed, job-2@20261127T020000Z expired, job-11@20261127T020000Z done")
}
