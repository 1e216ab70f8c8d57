package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// MaxBins is the maximum number of bins of a histogram.
const MaxBins = 240

// Histogram counts pending tasks by due time. If the user has not chosen a time span, the first bin contains the
// overdue tasks, if there are any, and bins further in the future are wider.
type Histogram struct {
	From, To time.Time
	Bins     []taskview.HistogramBucket
	// Before and After count the tasks that are due before From and after To.
	Before, After int64
}

// growing contains the ends of the bins, relative to now, for a histogram without a chosen time span.
var growing = []time.Duration{
	time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 4 * 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour, 30 * 24 * time.Hour, 60 * 24 * time.Hour,
	120 * 24 * time.Hour, 240 * 24 * time.Hour, 366 * 24 * time.Hour,
}

// Histogram counts pending tasks by due time between from and to. If both are zero, it ignores bins, and counts from
// the oldest overdue task to a year ahead in bins of growing width.
func (c *Core) Histogram(ctx context.Context, f schedule.Filter, from, to time.Time, bins int) (Histogram, error) {
	s, err := c.store()
	if err != nil {
		return Histogram{}, err
	}
	if err := within("bins", bins, MaxBins); err != nil {
		return Histogram{}, err
	}
	switch {
	case from.IsZero() != to.IsZero():
		return Histogram{}, &change.FieldError{Field: "from", Reason: "expected both from and to, or neither"}
	case !from.IsZero() && to.Sub(from) < time.Duration(bins)*time.Millisecond:
		return Histogram{}, &change.FieldError{Field: "to", Reason: fmt.Sprintf("to is too early; expected a time at least %d ms after from, which is one for each bin", bins)}
	}
	f.Status, f.DueFrom, f.DueTo = schedule.StatusPending, time.Time{}, time.Time{}
	key := fmt.Sprintf("%+v %v %v %d", f, from.UnixMilli(), to.UnixMilli(), bins)
	if err := c.answers(ctx); err != nil {
		return Histogram{}, err
	}
	return c.histograms.get(key, func(now time.Time) (Histogram, error) { // this reads an index of all counted tasks, so results are kept
		ctx, cancel := context.WithTimeout(ctx, slowest)
		defer cancel()
		return takeHistogram(ctx, s, f, from, to, bins, now)
	})
}

func takeHistogram(ctx context.Context, s *taskview.Store, f schedule.Filter, from, to time.Time, bins int, now time.Time) (h Histogram, err error) {
	count := func(from, to time.Time) (n int64, err error) {
		one := f
		one.DueFrom, one.DueTo = from, to
		return s.CountUpTo(ctx, schedule.NoTx, one, 0)
	}
	if from.IsZero() {
		h.From, h.To = now, now.Add(growing[len(growing)-1])
		later := f
		later.DueFrom = time.UnixMilli(1) // without the due time 0, which means that a task has been due since it was written
		for _, first := range []schedule.Filter{f, later} {
			first.Limit, first.WithoutBody = 1, true
			for t, err := range s.List(ctx, schedule.NoTx, first) {
				if err != nil {
					return h, err
				}
				if due := t.DueSince(); due.Before(h.From) {
					h.From = due
				}
			}
		}
		begin := h.From
		ends := []time.Time{}
		if begin.Before(now) {
			ends = append(ends, now)
		}
		for _, d := range growing {
			ends = append(ends, now.Add(d))
		}
		for i, end := range ends {
			from := begin
			if i == 0 {
				from = time.Time{}
			}
			n, err := count(from, end)
			if err != nil {
				return h, err
			}
			h.Bins = append(h.Bins, taskview.HistogramBucket{From: begin, To: end, Count: n})
			begin = end
		}
	} else {
		h.From, h.To = from, to
		width := to.Sub(from) / time.Duration(bins)
		width = (width + time.Millisecond - 1).Truncate(time.Millisecond)
		if h.Bins, err = s.Histogram(ctx, f, from, width, bins); err != nil {
			return h, err
		}
		h.From, h.To = h.Bins[0].From, h.Bins[len(h.Bins)-1].To
		if h.Before, err = count(time.Time{}, h.From); err != nil {
			return h, err
		}
	}
	h.After, err = count(h.To, time.Time{})
	return h, err
}

const (
	// keepTimes is how long a result is kept, as a multiple of the time that it took.
	keepTimes = 20
	// maxKept is the maximum number of results that are kept.
	maxKept = 64
)

// kept caches query results, because each query puts load on the database or the broker.
type kept[T any] struct {
	mu   sync.Mutex
	last map[string]keptResult[T]
}

type keptResult[T any] struct {
	v     T
	until time.Time
}

// get returns the cached result, or else calls take. It never calls take for several callers at the same time, so that
// many concurrent callers cause no more load than one.
func (k *kept[T]) get(key string, take func(now time.Time) (T, error)) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if r, ok := k.last[key]; ok && now.Before(r.until) {
		return r.v, nil
	}
	v, err := take(now)
	if err != nil {
		return v, err
	}
	if k.last == nil || len(k.last) >= maxKept {
		k.last = map[string]keptResult[T]{}
	}
	done := time.Now()
	k.last[key] = keptResult[T]{v, done.Add(max(keepTimes*done.Sub(now), time.Second))}
	return v, nil
}
