package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// occurrencesOf returns the occurrences of a recurring task in the order of their due times.
func occurrencesOf(t *testing.T, s *schedule.Store, name string) []schedule.TaskRow {
	t.Helper()
	var list []schedule.TaskRow
	for task, err := range s.List(t.Context(), schedule.NoTx, schedule.Filter{IDPrefix: name + "@"}) {
		suite.MustSucceed(t, err)
		list = append(list, task)
	}
	return list
}

// Three relays that start and stop at random create and send the occurrence of every second, none
// of them twice, and most of them ahead of time, however busy the machine is.
func TestRecurringRelays(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		t.Parallel()
		out := &outbox{}
		s := newStore(t, db, out, schedule.Config{})
		names := []string{"every", "cron"}
		for i := range 8 {
			names = append(names, fmt.Sprintf("n%d", i))
		}
		for i, name := range names {
			r := schedule.Recurring{
				Name: name, Cron: "* * * * * *", TimeZone: "America/New_York", Misfire: schedule.MisfireAll,
				Task: schedule.Task{Queue: "q", Tags: []string{"t"}},
			}
			if i%2 == 0 {
				r.Cron, r.Every = "", time.Second
			}
			suite.MustSucceed(t, s.Recurring().Add(t.Context(), schedule.NoTx, r))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var relays sync.WaitGroup
		for range 3 {
			relay, err := db.newStore(out, schedule.Config{PollInterval: 50 * time.Millisecond})
			suite.MustSucceed(t, err)
			relays.Go(func() {
				for ctx.Err() == nil {
					life, end := context.WithTimeout(ctx, time.Duration(100+rand.IntN(1500))*time.Millisecond)
					if err := relay.Run(life); err != nil {
						t.Error(err)
					}
					end()
				}
			})
		}
		begin := time.Now()
		suite.Eventually(t, "20 seconds have passed", func() bool { return time.Since(begin) > 20*time.Second })
		suite.Eventually(t, "a task of the 75th second", func() bool {
			list := occurrencesOf(t, s, "every")
			return list[len(list)-1].DeliverAt.After(begin.Add(75 * time.Second))
		})
		cancel()
		relays.Wait()
		for _, name := range names {
			list := occurrencesOf(t, s, name)
			ahead := 0
			for i, task := range list {
				_, at, ok := schedule.ParseOccurrence(task.ID)
				if !ok || !at.Equal(task.DeliverAt) || len(task.Tags) != 1 {
					t.Fatalf("occurrence %s is due at %s with the tags %v, want the time in its id and one tag", task.ID, task.DeliverAt, task.Tags)
				}
				if task.CreatedAt.Before(at) {
					ahead++
				}
				if i > 0 && at.Sub(list[i-1].DeliverAt) != time.Second {
					t.Fatalf("occurrence %s follows %s, want the next second", task.ID, list[i-1].ID)
				}
				if n := out.count(task.ID); n == 0 && at.Before(begin.Add(10*time.Second)) {
					t.Fatalf("occurrence %s was not sent", task.ID)
				}
			}
			if 2*ahead < len(list) {
				t.Errorf("%d of %d occurrences of %s were created in advance, want at least half", ahead, len(list), name)
			}
		}
	})
}

func TestRecurringOutage(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, &outbox{}, schedule.Config{})
		for _, r := range []schedule.Recurring{
			{Name: "skip", Misfire: schedule.MisfireSkip}, {Name: "once"}, {Name: "all", Misfire: schedule.MisfireAll},
			{Name: "ten", Misfire: schedule.MisfireAll, MisfireLimit: 10},
		} {
			r.Cron, r.Task = "@hourly", schedule.Task{Queue: "q"}
			suite.MustSucceed(t, s.Recurring().Add(t.Context(), schedule.NoTx, r))
			// The task of the first hour had been created before all relays stopped.
			first := time.Now().Truncate(time.Hour).Add(-71 * time.Hour)
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{
				ID: r.Name + "@" + first.UTC().Format("2006-01-02T15:04:05Z"), Queue: "q", DeliverAt: first,
			}))
			db.mustExec(t, "UPDATE rabbitdelay_schedules SET plan_at = ?, last_at = ?, next_at = ? WHERE name = ?",
				first.UnixMilli(), first.UnixMilli(), first.Add(time.Hour).UnixMilli(), r.Name)
		}
		stop := runStore(t, s)
		suite.Eventually(t, "all are planned", func() bool {
			return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_schedules WHERE plan_at < "+fmt.Sprint(time.Now().UnixMilli())) == 0
		})
		stop()
		now := time.Now()
		for name, want := range map[string]int{"skip": 0, "once": 1, "all": 72, "ten": 11} {
			n := 0
			for _, task := range occurrencesOf(t, s, name) {
				if task.Status == schedule.StatusPending && task.DeliverAt.Before(now) {
					n++
				}
			}
			if n != want && n != want+1 { // the occurrence of the hour that has just begun may be on time
				t.Errorf("%s: %d occurrences were created after an outage of three days, want %d or %d", name, n, want, want+1)
			}
		}
	})
}

func TestRecurringChanges(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		x, ctx := s.Recurring(), t.Context()
		r := schedule.Recurring{Name: "a", Cron: "0 8 * * *", TimeZone: "Europe/Berlin", Task: schedule.Task{
			Queue: "q", Body: []byte{0, 255}, ContentType: "x", Type: "y", CorrelationID: "c", Priority: 2,
			Headers: map[string]string{"k": "v"}, Tags: []string{"t"}, ExpiresAfter: time.Hour,
		}}
		// Several programs start at the same time and put the same recurring task.
		changes := make([]schedule.Change, 8)
		for _, err := range together(8, func(i int) (err error) { changes[i], err = x.Put(ctx, schedule.NoTx, r); return err }) {
			suite.MustSucceed(t, err)
		}
		created := 0
		for _, c := range changes {
			if c == schedule.Created {
				created++
			}
		}
		if created != 1 {
			t.Errorf("%d of the concurrent calls to Put created the recurring task, want 1: %v", created, changes)
		}
		next, err := r.Next(time.Now(), 1)
		suite.MustSucceed(t, err)
		id := next[0].ID
		expect := func(status schedule.Status, version int64) {
			t.Helper()
			got := taskOf(t, s, id)
			for _, c := range []struct {
				field     string
				got, want any
			}{
				{"status", got.Status, status},
				{"version", got.Version, version},
				{"body", string(got.Body), "\x00\xff"},
				{"header k", got.Headers["k"], "v"},
				{"priority", int(got.Priority), 2},
				{"expiry", got.ExpiresAfter, time.Hour},
				{"tags", fmt.Sprint(got.Tags), "[t]"},
			} {
				if c.got != c.want {
					t.Fatalf("the task's %s is %v, want %v: %+v", c.field, c.got, c.want, got)
				}
			}
		}
		first := taskOf(t, s, id).Version
		expect(schedule.StatusPending, first)
		suite.MustSucceed(t, x.Pause(ctx, schedule.NoTx, "a"))
		expect(schedule.StatusCancelled, first+1)
		suite.MustSucceed(t, x.Resume(ctx, schedule.NoTx, "a"))
		expect(schedule.StatusPending, first+1)
		if c, err := x.Put(ctx, schedule.NoTx, r); err != nil || c != schedule.Unchanged {
			t.Errorf("put: got %s, %v, want no error and schedule.Unchanged", c, err)
		}

		// One transaction is rolled back, and one continues after an error.
		tx, err := db.BeginTx(ctx, nil)
		suite.MustSucceed(t, err)
		suite.MustSucceed(t, x.Delete(ctx, tx, "a"))
		suite.MustSucceed(t, tx.Rollback())
		expect(schedule.StatusPending, first+1)
		tx, err = db.BeginTx(ctx, nil)
		suite.MustSucceed(t, err)
		if err := x.Add(ctx, tx, r); !errors.Is(err, schedule.ErrScheduleExists) {
			t.Errorf("add: got %v, want schedule.ErrScheduleExists", err)
		}
		fired, err := x.RunNow(ctx, tx, "a")
		suite.MustSucceed(t, err)
		suite.MustSucceed(t, tx.Commit())
		if got := taskOf(t, s, fired); got.Status != schedule.StatusPending || fmt.Sprint(got.Tags) != "[t]" {
			t.Errorf("fired: got %+v, want Status = schedule.StatusPending and Tags = [t]", got)
		}
		suite.MustSucceed(t, x.Edit(ctx, schedule.NoTx, "a", func(r *schedule.Recurring) error { r.Jitter = time.Minute; return nil }))
		expect(schedule.StatusPending, first+2)
		suite.MustSucceed(t, x.Delete(ctx, schedule.NoTx, "a"))
		expect(schedule.StatusCancelled, first+3)
		if _, err := x.Get(ctx, schedule.NoTx, "a"); !errors.Is(err, schedule.ErrNoSchedule) {
			t.Errorf("get after delete: got error %v, want schedule.ErrNoSchedule", err)
		}
	})
}

// Three relays process a thousand recurring tasks at the same time, including rows that other programs wrote
// incorrectly.
func TestRecurringThousand(t *testing.T) {
	eachDriver(t, func(t *testing.T, db businessDB) {
		out := &outbox{}
		s := newStore(t, db, out, schedule.Config{})
		for start := range 10 {
			rows := make([]string, 100)
			for i := range rows {
				rows[i] = fmt.Sprintf("('n%04d', 'q', '%d 8 * * *', 'Europe/Berlin')", start*100+i, i%60)
			}
			db.mustExec(t, "INSERT INTO rabbitdelay_schedules (name, queue, cron, time_zone) VALUES "+strings.Join(rows, ", "))
		}
		db.mustExec(t, "INSERT INTO rabbitdelay_schedules (name, queue, cron, time_zone) VALUES ('cron', 'q', 'tomorrow', 'UTC'), ('zone', 'q', '@daily', 'Mars')")
		db.mustExec(t, "INSERT INTO rabbitdelay_schedules (name, queue, every_ms, starts_at) VALUES ('every', 'q', 9223372036854775807, -1)")
		for range 3 {
			relay, err := db.newStore(out, schedule.Config{})
			suite.MustSucceed(t, err)
			runStore(t, relay)
		}
		suite.Eventually(t, "all are planned", func() bool {
			return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_schedules WHERE plan_at = 0 AND name <> 'zone'") == 0
		})
		suite.Eventually(t, "the row with an unknown time zone has an error", func() bool { // the row stays due for a relay with newer time zone data
			r, err := s.Recurring().Get(t.Context(), schedule.NoTx, "zone")
			return err == nil && r.LastError != ""
		})
		if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'pending'"); n != 1000 {
			t.Errorf("%d tasks are pending, want 1000", n)
		}
		for _, name := range []string{"cron", "zone", "every"} {
			r, err := s.Recurring().Get(t.Context(), schedule.NoTx, name)
			if err != nil || r.LastError == "" {
				t.Errorf("recurring task %s: got LastError %q (error %v), want a non-empty LastError", name, r.LastError, err)
			}
		}
		for _, bad := range []string{
			"INSERT INTO rabbitdelay_schedules (name, queue, cron) VALUES ('a@b', 'q', '@daily')",
			"INSERT INTO rabbitdelay_schedules (name, queue) VALUES ('a', 'q')",
			"INSERT INTO rabbitdelay_schedules (name, queue, cron, every_ms) VALUES ('a', 'q', '@daily', 1000)",
			"INSERT INTO rabbitdelay_schedules (name, cron) VALUES ('a', '@daily')",
			"INSERT INTO rabbitdelay_schedules (name, queue, cron, misfire) VALUES ('a', 'q', '@daily', 'odd')",
		} {
			if _, err := db.ExecContext(t.Context(), bad); err == nil {
				t.Errorf("%s: got no error, want the table to reject the row", bad)
			}
		}
	})
}

// The SQL statements in docs/recurring.md work unchanged.
func TestRecurringDocumentedStatements(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/recurring.md")
	suite.MustSucceed(t, err)
	statements := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```sql\n-- ([^\n:]+).*?\n(.*?);\n```").FindAllStringSubmatch(string(text), -1) {
		statements[m[1]] = m[2]
	}
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, &outbox{}, schedule.Config{PollInterval: 20 * time.Millisecond, Hooks: schedule.Hooks{
			Error: func(what string, err error) { t.Errorf("%s failed: %v", what, err) },
		}})
		runStore(t, s)
		do := func(what string) {
			t.Helper()
			if statements[what] == "" {
				t.Fatalf("docs/recurring.md contains no statement %q", what)
			}
			db.mustExec(t, statements[what])
		}
		pending := func(what string, at ...string) {
			t.Helper()
			suite.Eventually(t, what, func() bool {
				var found []string
				for _, task := range occurrencesOf(t, s, "nightly") {
					if task.Status == schedule.StatusPending {
						found = append(found, task.DeliverAt.In(berlin(t)).Format("15:04"))
					}
				}
				return fmt.Sprint(found) == fmt.Sprint(at)
			})
		}
		do("add")
		do("add an interval, in milliseconds")
		pending("added", "02:30")
		do("change")
		pending("changed", "03:00")
		do("pause")
		pending("paused")
		do("resume")
		pending("resumed", "03:00")
		do("pause")
		suite.Eventually(t, "deleted", func() bool {
			do("delete")
			return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_schedules") == 1
		})
		pending("deleted")
		suite.Eventually(t, "the recurring task with an interval has one occurrence", func() bool { return len(occurrencesOf(t, s, "pulse")) == 1 })
		if list := occurrencesOf(t, s, "pulse"); time.Until(list[0].DeliverAt) > 15*time.Minute+time.Second { // whole seconds
			t.Errorf("the first occurrence of the interval: got %v, want it due within %v", list, 15*time.Minute+time.Second)
		}
		do("what is wrong")
	})
}

func berlin(t *testing.T) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	suite.MustSucceed(t, err)
	return zone
}
