package page

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// latenessChart is the lateness of the last hour as two lines over 60 minutes, in a
// field of 60 by 100.
type latenessChart struct {
	P50, P99     string // paths
	Top          string // of the axis
	Half         string
	Now50, Now99 string // of the newest minute that has tasks
	Count        int64
	Points       []latenessRow
}

type latenessRow struct {
	From     stamp
	P50, P99 string
	Count    int64
}

// latenessOf is of the hour until an instant. It is pure.
func latenessOf(r *request, until time.Time, points []service.LatenessPoint) latenessChart {
	var c latenessChart
	top := 10 * time.Millisecond
	for _, p := range points {
		c.Count += p.Count
		if p.Count > 0 {
			top = max(top, p.P99)
			c.Now50, c.Now99 = short(p.P50), short(p.P99)
			c.Points = append(c.Points, latenessRow{r.stamp(p.From), short(p.P50), short(p.P99), p.Count})
		}
	}
	top = roundUp(top)
	c.Top, c.Half = short(top), short(top/2)
	first := until.Truncate(time.Minute).Add(-59 * time.Minute)
	c.P50 = linePath(points, first, top, func(p service.LatenessPoint) time.Duration { return p.P50 })
	c.P99 = linePath(points, first, top, func(p service.LatenessPoint) time.Duration { return p.P99 })
	return c
}

// linePath begins at the minute first, and is interrupted where a minute has no task.
func linePath(points []service.LatenessPoint, first time.Time, top time.Duration, of func(service.LatenessPoint) time.Duration) string {
	var b strings.Builder
	var drawn time.Time
	for _, p := range points {
		x, y := p.From.Sub(first).Minutes(), 100-100*float64(of(p))/float64(top)
		switch {
		case p.Count == 0 || x < 0:
			continue
		case p.From.Equal(drawn.Add(time.Minute)):
			_, _ = fmt.Fprintf(&b, "L%.2f %.2f", x, y)
		default:
			_, _ = fmt.Fprintf(&b, "M%.2f %.2fh.4", x, y)
		}
		drawn = p.From
	}
	return b.String()
}

// roundUp is the next of 1, 2 and 5 times a power of ten.
func roundUp(d time.Duration) time.Duration {
	unit := math.Pow(10, math.Floor(math.Log10(float64(d))))
	for _, f := range []float64{1, 2, 5, 10} {
		if f*unit >= float64(d) {
			return time.Duration(f * unit)
		}
	}
	return d
}

// short has three digits at most where it is less than a minute.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		d = d.Truncate(time.Second)
	case d >= 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return topology.FormatDuration(d)
}
