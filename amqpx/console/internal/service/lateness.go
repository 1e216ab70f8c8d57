package service

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

const (
	lateFor    = 60  // minutes that are shown
	lateSample = 200 // tasks of a minute that are looked at
)

// lateness keeps the minutes that are over.
type lateness struct {
	mu   sync.Mutex
	past map[time.Time]LatenessPoint
}

// points are the last hour's. A minute without a task has none.
func (l *lateness) points(ctx context.Context, s *schedule.Store, now time.Time) ([]LatenessPoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.past == nil {
		l.past = map[time.Time]LatenessPoint{}
	}
	last := now.Truncate(time.Minute)
	first := last.Add(-(lateFor - 1) * time.Minute)
	for at := range l.past {
		if at.Before(first) {
			delete(l.past, at)
		}
	}
	out := []LatenessPoint{}
	for at := first; !at.After(last); at = at.Add(time.Minute) {
		p, known := l.past[at]
		if !known {
			list, err := s.Lateness(ctx, nil, at, at.Add(time.Minute), lateSample)
			if err != nil {
				return nil, err
			}
			p = pointOf(at, list)
			if now.Sub(at) > 2*time.Minute { // transactions may commit a little later
				l.past[at] = p
			}
		}
		if p.Count > 0 {
			out = append(out, p)
		}
	}
	return out, nil
}

func pointOf(at time.Time, list []time.Duration) LatenessPoint {
	p := LatenessPoint{From: at, Count: int64(len(list))}
	if len(list) > 0 {
		slices.Sort(list)
		p.P50, p.P99 = list[(len(list)-1)/2], list[(len(list)-1)*99/100]
	}
	return p
}
