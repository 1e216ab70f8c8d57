package tasks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// The console reads the same data for its lists and its history on every database.
func TestScheduleLists(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		suite.MustSucceed(t, schedule.Migrate(t.Context(), db.DB))
		s, err := taskview.New(db.DB, schedule.Config{Dialect: db.dialect})
		suite.MustSucceed(t, err)
		base := time.Now().Truncate(time.Minute).Add(-time.Hour)
		for i := range 12 {
			task := schedule.Task{
				ID: fmt.Sprintf("job@%02d", i), Queue: "q", DeliverAt: base.Add(time.Duration(i/3) * time.Minute),
				Tags: []string{fmt.Sprint("tenant-", i%3), "all"},
			}
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, task))
			if i%2 == 0 {
				db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = ?, finished_at = ?, attempts = ? WHERE id = ?",
					[]string{"done", "failed", "cancelled"}[i/2%3], base.Add(time.Duration(3-i/4)*time.Minute).UnixMilli(), i, task.ID)
			} else {
				db.mustExec(t, "UPDATE rabbitdelay_tasks SET attempts = 1 WHERE id = ?", task.ID)
			}
		}
		for want, f := range map[string]schedule.Filter{
			"11 10 09 08 07 06 05 04 03 02 01 00": {Sort: schedule.SortDueLast},
			"08 10 04 06 00 02":                   {Sort: schedule.SortEnded},
			"02 00 06 04 10 08":                   {Sort: schedule.SortEndedLast},
			"02 08":                               {Sort: schedule.SortEndedLast, Status: schedule.StatusFailed, Queue: "q"},
			"03 08":                               {IDs: []string{"job@08", "job@03", "none"}},
			"02 05 08 11":                         {Tag: "tenant-2"},
		} {
			for _, page := range []int{1, 3, 50} {
				if got := listed(t, s, f, page); got != want {
					t.Errorf("%+v with %d tasks per page: got %s, want %s", f, page, got, want)
				}
			}
		}
		ends, err := s.CompletionStats(t.Context(), base, time.Minute, 4)
		suite.MustSucceed(t, err)
		var got []string
		for _, e := range ends {
			got = append(got, fmt.Sprintf("%d done %d failed %d retries %v", e.Done, e.Failed, e.Retries, e.Lateness(1).Round(time.Minute)))
		}
		// Tasks 08 and 10 finished one minute after base, 04 and 06 two minutes after it, and 00 and 02 three minutes
		// after it.
		const minutes = "0 done 0 failed 0 retries 0s, 0 done 1 failed 7 retries 0s, " +
			"1 done 0 failed 6 retries 0s, 1 done 1 failed 1 retries 3m0s"
		if all := strings.Join(got, ", "); all != minutes {
			t.Errorf("statistics by minute: got %s, want %s", all, minutes)
		}
		if n, err := s.CountRetried(t.Context(), 100); n != 6 || err != nil {
			t.Errorf("CountRetried = %d (error %v), want 6", n, err)
		}
		if tags, err := s.Tags(t.Context(), 3); fmt.Sprint(tags) != "[all tenant-0 tenant-1]" || err != nil {
			t.Errorf("tags: got %v, %v, want [all tenant-0 tenant-1] and no error", tags, err)
		}
		runs, err := s.Recurring().LastRuns(t.Context(), schedule.NoTx, []string{"job", "other"})
		if err != nil || len(runs) != 1 || runs["job"].ID != "job@08" {
			t.Errorf(`last runs: got %v, %v, want no error, 1 element and runs["job"].ID = "job@08"`, runs, err)
		}
	})
}

// listed returns the last two characters of each id that a filter selects, read page by page.
func listed(t *testing.T, s *taskview.Store, f schedule.Filter, page int) string {
	t.Helper()
	var ids []string
	for {
		f.Limit = page
		n := 0
		for x, err := range s.List(t.Context(), schedule.NoTx, f) {
			suite.MustSucceed(t, err)
			ids = append(ids, strings.TrimPrefix(x.ID, "job@"))
			f.After = f.CursorOf(x)
			n++
		}
		if n < page {
			return strings.Join(ids, " ")
		}
	}
}
