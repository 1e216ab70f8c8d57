package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

const (
	// MaxBins is how many bins a histogram may have.
	MaxBins = 240
	// slowest bounds what a page or an answer waits for the database.
	slowest = 20 * time.Second
	// keep is how much longer a histogram is not taken again than it took.
	keep = 20
)

// histograms keeps the last ones, because each reads the index of all tasks that it
// counts.
type histograms struct {
	mu   sync.Mutex
	kept map[string]histogramTaken
}

type histogramTaken struct {
	h     Histogram
	at    time.Time
	until time.Time
}

// maxKept is how many histograms are kept.
const maxKept = 64

// growing are the ends of the bins of what lies ahead, for a span that nobody has
// chosen.
var growing = []time.Duration{
	time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 4 * 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour, 30 * 24 * time.Hour, 60 * 24 * time.Hour,
	120 * 24 * time.Hour, 240 * 24 * time.Hour, 366 * 24 * time.Hour,
}

// Histogram is a method of Now.
func (c *Core) Histogram(ctx context.Context, f schedule.Filter, from, to time.Time, bins int) (Histogram, error) {
	s, err := c.store()
	if err != nil {
		return Histogram{}, err
	}
	switch {
	case bins < 1 || bins > MaxBins:
		return Histogram{}, &FieldError{"bins", fmt.Sprintf("%d; expected 1 to %d", bins, MaxBins)}
	case from.IsZero() != to.IsZero():
		return Histogram{}, &FieldError{"from", "from and to belong together; give both, or neither"}
	case !from.IsZero() && to.Sub(from) < time.Duration(bins)*time.Millisecond:
		return Histogram{}, &FieldError{"to", fmt.Sprintf("expected an instant at least %d ms after from, one for each bin", bins)}
	}
	f.Status, f.DueFrom, f.DueTo = schedule.StatusPending, time.Time{}, time.Time{}
	key := fmt.Sprintf("%+v %v %v %d", f, from.UnixMilli(), to.UnixMilli(), bins)
	now := time.Now()
	if err := c.answers(ctx); err != nil {
		return Histogram{}, err
	}
	h := &c.histograms
	h.mu.Lock() // one at a time, so that many who ask cost no more than one
	defer h.mu.Unlock()
	if k, ok := h.kept[key]; ok && now.Before(k.until) {
		return k.h, nil
	}
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	out, err := takeHistogram(ctx, s, f, from, to, bins, now)
	if err != nil {
		return out, err
	}
	if h.kept == nil || len(h.kept) >= maxKept {
		h.kept = map[string]histogramTaken{}
	}
	done := time.Now()
	h.kept[key] = histogramTaken{out, now, done.Add(max(keep*done.Sub(now), time.Second))}
	return out, nil
}

func takeHistogram(ctx context.Context, s *schedule.Store, f schedule.Filter, from, to time.Time, bins int, now time.Time) (h Histogram, err error) {
	count := func(from, to time.Time) (n int64, err error) {
		one := f
		one.DueFrom, one.DueTo = from, to
		return s.CountUpTo(ctx, nil, one, 0)
	}
	if from.IsZero() {
		h.From, h.To = now, now.Add(growing[len(growing)-1])
		for t, err := range s.List(ctx, nil, schedule.Filter{Queue: f.Queue, Exchange: f.Exchange, Status: f.Status, IDPrefix: f.IDPrefix, Tag: f.Tag, Header: f.Header, HeaderValue: f.HeaderValue, Limit: 1, WithoutBody: true}) {
			if err != nil {
				return h, err
			}
			if t.DeliverAt.Before(now) {
				h.From = t.DeliverAt
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
		for _, end := range ends {
			n, err := count(begin, end)
			if err != nil {
				return h, err
			}
			h.Bins = append(h.Bins, schedule.Bin{From: begin, To: end, Count: n})
			begin = end
		}
	} else {
		h.From, h.To = from, to
		width := to.Sub(from) / time.Duration(bins)
		width = (width + time.Millisecond - 1).Truncate(time.Millisecond)
		if h.Bins, err = s.Histogram(ctx, nil, f, from, width, bins); err != nil {
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
