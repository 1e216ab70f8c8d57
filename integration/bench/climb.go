package bench

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
)

// The range of rates, in messages per second, in which the highest rate is searched, and how many times the remaining
// interval is halved. With climbs repeats, every search ends.
const (
	slowest = 500.0
	fastest = 64_000.0
	halving = 3
	climbs  = 8 + halving
)

// search finds the highest rate that a client sustains.
type search struct {
	held     float64 // the highest rate that was sustained
	failed   float64 // the lowest rate that was not sustained
	halvings int
}

// next returns the next rate to try. It doubles the rate until one fails, and then takes the middle of the interval. It
// returns 0 if the search has ended.
func (e *search) next() float64 {
	switch {
	case e.failed == 0 && e.held == 0:
		return slowest
	case e.failed == 0 && e.held < fastest:
		return 2 * e.held
	case e.failed == 0 || e.held == 0 || e.halvings == halving:
		return 0
	}
	return math.Sqrt(e.held * e.failed)
}

func (e *search) record(rate float64, held bool) {
	if e.failed > 0 {
		e.halvings++
	}
	if held {
		e.held = rate
	} else {
		e.failed = rate
	}
}

// climb finds the highest rate at which the p99 lateness stays below the given number of milliseconds. Each repeat
// tries one rate, so that the searches of a group take turns.
func climb(most float64, f flow) work {
	var e search
	var last float64 // p99 of the highest sustained rate
	return func(ctx context.Context, t *turn) error {
		if f.rate = e.next(); f.rate == 0 || t.o.Quick && e.held > 0 {
			return nil
		}
		via, err := byClient(ctx, t)
		if err != nil {
			return err
		}
		o, err := f.through(ctx, via, t.o.Body, 10*time.Second)
		if err != nil {
			return err
		}
		p99 := math.Inf(1)
		if len(o.late) > 0 {
			p99 = lateness.Percentile(o.late, 0.99)
		}
		held := o.kept && o.missing == 0 && p99 < most
		e.record(f.rate, held)
		t.o.Log(fmt.Sprintf("%s, %s: %.0f/s, p99 %.0f ms late, rate kept: %t", t.row.Group, t.row.Name, f.rate, p99, o.kept))
		if held {
			last = p99
		}
		switch {
		case e.next() > 0 && (!t.o.Quick || !held):
		case e.held == 0:
			t.s.Notef("%s (%s): not even %.0f/s were sustained", t.row.Name, t.row.Group, slowest)
		default:
			t.row.Add(metricRate, "messages/s", e.held)
			t.row.Add(metricP99, "ms late", last)
		}
		return nil
	}
}
