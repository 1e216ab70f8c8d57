package taskview

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// HistogramBucket is the number of tasks that are due no earlier than From and before To.
type HistogramBucket struct {
	From, To time.Time
	Count    int64
}

// Histogram counts tasks by due time, in n buckets of the given width, the first of which begins at from. The width is
// in whole milliseconds.
func (s *Store) Histogram(ctx context.Context, f schedule.Filter, from time.Time, width time.Duration, n int) ([]HistogramBucket, error) {
	if width < time.Millisecond || n < 1 || n > 100_000 {
		return nil, fmt.Errorf("histogram: width %s and %d bins, expected at least 1ms and 1 to 100000", topology.FormatDuration(width), n)
	}
	start, step := rows.Millis(from), width.Milliseconds()
	bins := make([]HistogramBucket, n)
	for i := range bins {
		bins[i].From = time.UnixMilli(start + int64(i)*step)
		bins[i].To = time.UnixMilli(start + int64(i+1)*step)
	}
	if f.DueFrom.IsZero() || f.DueFrom.Before(bins[0].From) {
		f.DueFrom = bins[0].From
	}
	if f.DueTo.IsZero() || f.DueTo.After(bins[n-1].To) {
		f.DueTo = bins[n-1].To
	}
	return filtered(ctx, s, f, "histogram of tasks", func(c rows.Conn, f rows.Filter) ([]HistogramBucket, error) {
		return bins, c.Bins(ctx, f, start, step, func(i int, count int64) {
			if i >= 0 && i < n {
				bins[i].Count = count
			}
		})
	})
}
