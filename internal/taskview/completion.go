package taskview

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// CompletionStats counts the tasks that ended no earlier than From and before To.
type CompletionStats struct {
	From, To     time.Time
	Done, Failed int64
	// Retries counts the attempts of these tasks after the first one.
	Retries int64
	// Late counts the done tasks by lateness, which is how long after their due times they were done. The upper bounds
	// of the counts are 1 to 9 ms, then 10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68 and 82 ms, ten times these values
	// and so on up to 100,000 s. The last count has no bound. Zeros at the end may be left out.
	Late []int64
}

// Lateness returns a quantile of the lateness of the done tasks: for 0.99, the lateness that 99 % of them did not
// exceed. It is accurate to about a tenth, because it assumes that tasks are evenly spread within each count of Late.
// It returns 0 if no task was done.
func (e CompletionStats) Lateness(share float64) time.Duration {
	want := share * float64(e.Done)
	var below float64
	for i, n := range e.Late {
		if n > 0 && below+float64(n) >= want {
			from, to := lateSpan(i)
			return from + time.Duration(float64(to-from)*max(0, want-below)/float64(n)).Round(time.Millisecond/10)
		}
		below += float64(n)
	}
	return 0
}

// Plus returns e with the counts of another span added. From and To do not change.
func (e CompletionStats) Plus(o CompletionStats) CompletionStats {
	late := make([]int64, max(len(e.Late), len(o.Late)))
	for _, counts := range [][]int64{e.Late, o.Late} {
		for i, n := range counts {
			late[i] += n
		}
	}
	e.Late = late
	e.Done, e.Failed, e.Retries = e.Done+o.Done, e.Failed+o.Failed, e.Retries+o.Retries
	return e
}

// lateSpan returns the bounds of the histogram bucket CompletionStats.Late[class]. The last bucket has no upper bound,
// so lateSpan returns its lower bound twice.
func lateSpan(class int) (from, to time.Duration) {
	last := len(rows.LateBounds) - 1
	if class > 0 {
		from = rows.LateBounds[min(class-1, last)]
	}
	return from, rows.LateBounds[min(class, last)]
}

// CompletionStats counts how tasks ended in each of n consecutive time spans of the given width, the first of which
// begins at from. The width is in whole milliseconds. CompletionStats reads the row of each task that ended in the
// spans, by an index, so the spans should be short if many tasks end.
func (s *Store) CompletionStats(ctx context.Context, from time.Time, width time.Duration, n int) ([]CompletionStats, error) {
	if width < time.Millisecond || n < 1 || n > 100_000 {
		return nil, fmt.Errorf("ended tasks: width %s and %d spans, expected at least 1ms and 1 to 100000", topology.FormatDuration(width), n)
	}
	start, step := rows.Stored(from), width.Milliseconds()
	return reading(ctx, s, "reading how tasks ended", func(c rows.Conn) ([]CompletionStats, error) {
		list, err := c.Ended(ctx, start, step, n)
		out := make([]CompletionStats, len(list))
		for i, e := range list {
			at := start + int64(i)*step
			out[i] = CompletionStats{From: time.UnixMilli(at), To: time.UnixMilli(at + step), Done: e.Done, Failed: e.Failed, Retries: e.Retries, Late: e.Late}
		}
		return out, err
	})
}

// CountFinished counts the tasks that finished with the given status in the interval [from, to), up to limit. A result
// of limit + 1 means that there are more.
func (s *Store) CountFinished(ctx context.Context, status schedule.Status, from, to time.Time, limit int64) (int64, error) {
	if !slices.Contains([]schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed}, status) {
		return 0, fmt.Errorf("%w: counting finished tasks: status %q; expected done, cancelled, expired or failed", schedule.ErrConfig, status)
	}
	return reading(ctx, s, "counting finished tasks", func(c rows.Conn) (int64, error) {
		return c.CountFinished(ctx, string(status), from, to, limit)
	})
}
