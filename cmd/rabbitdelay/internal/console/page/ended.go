package page

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// periods are the selectable periods for ended tasks. The first is the default.
var periods = []period{
	{"hour", "last hour", time.Minute, 60, func(h service.History) []taskview.CompletionStats { return h.Hour }},
	{"day", "last day", 10 * time.Minute, 144, func(h service.History) []taskview.CompletionStats { return h.Day }},
	{"week", "last week", time.Hour, 168, func(h service.History) []taskview.CompletionStats { return h.Week }},
}

// period is a part of the history, divided into time spans of equal width.
type period struct {
	Name  string
	Label string
	Width time.Duration
	n     int // the number of spans
	of    func(service.History) []taskview.CompletionStats
}

// periodOf returns the period that a request selects, or the default.
func periodOf(r *request) period {
	for _, p := range periods {
		if p.Name == r.get("over") {
			return p
		}
	}
	return periods[0]
}

// endedChart shows how the tasks of a period ended, with a bar for each time span, and their lateness as two lines. The
// drawings are Slots wide and 100 high.
type endedChart struct {
	Period  period
	Choices []choice
	Slots   int
	Rows    []endedRow // the spans in which tasks ended, oldest first
	Top     string     // the top of the bars' axis, in tasks per minute
	Ago     [2]string  // the first and the middle label of the time axis

	P50, P99         string // SVG paths
	Late, HalfLate   string // the top and the middle of the lateness axis
	LastP50, LastP99 string // lateness in the newest span with done tasks; empty if there is none

	LastMinute  int64 // tasks done in the last full minute
	Done        int64
	Failed      int64
	Retries     int64
	FailedInAll int64
}

// choice is a link to one of several views of a page.
type choice struct {
	Name, Href string
	Current    bool
}

// endedRow is a time span with its bar, which stacks the failed tasks on top of the done tasks.
type endedRow struct {
	From                  stamp
	Done, Failed, Retries int64
	P50, P99              string
	Summary               string
	X                     int
	DoneY, DoneH          float64
	FailedY, FailedH      float64
}

// chartEnded lays out the chart of how tasks ended in the selected period. It is a pure function.
func chartEnded(r *request, o service.Overview) endedChart {
	p := periodOf(r)
	c := endedChart{Period: p, Slots: p.n, Ago: [2]string{topology.FormatDuration(p.Width * time.Duration(p.n)), topology.FormatDuration(p.Width * time.Duration(p.n) / 2)}}
	for i, x := range periods {
		over := x.Name
		if i == 0 {
			over = ""
		}
		c.Choices = append(c.Choices, choice{x.Label, link("./", "over", over, "from", r.get("from"), "to", r.get("to"), "queue", r.get("queue")) + "#ended", x.Name == p.Name})
	}
	if t := o.Status.Tasks; t != nil {
		for _, n := range t.Counts {
			if n.Status == schedule.StatusFailed {
				c.FailedInAll += n.Count
			}
		}
	}
	for _, e := range o.History.Hour {
		if e.From.Equal(o.TasksAt().Truncate(time.Minute).Add(-time.Minute)) {
			c.LastMinute = e.Done
		}
	}
	list := p.of(o.History)
	first := o.TasksAt().Truncate(p.Width).Add(-p.Width * time.Duration(p.n-1))
	c.drawBars(r, list, first)
	c.drawLateness(list, first)
	if e := o.Ended; e != nil {
		c.FailedInAll = max(c.FailedInAll, e.FailedDay) // the overview's count is newer
	}
	return c
}

func (c *endedChart) drawBars(r *request, list []taskview.CompletionStats, first time.Time) {
	var most int64
	for _, e := range list {
		most = max(most, e.Done+e.Failed)
	}
	minutes := c.Period.Width.Minutes()
	c.Top = perMinute(float64(most) / minutes)
	for _, e := range list {
		row := endedRow{
			From: r.stamp(e.From), Done: e.Done, Failed: e.Failed, Retries: e.Retries, P50: short(e.Lateness(0.5)), P99: short(e.Lateness(0.99)),
			X: int(e.From.Sub(first) / c.Period.Width), DoneH: barHeight(e.Done, most, 1.5), FailedH: barHeight(e.Failed, most, 4),
		}
		if row.X < 0 || row.X >= c.Slots {
			continue // a span of an outdated overview
		}
		row.Summary = row.From.Text + ": " + summaryOf(r.lang, e)
		row.DoneY = math.Max(0, 100-row.DoneH)
		row.FailedY = math.Max(0, row.DoneY-row.FailedH)
		c.Rows = append(c.Rows, row)
		c.Done, c.Failed, c.Retries = c.Done+e.Done, c.Failed+e.Failed, c.Retries+e.Retries
	}
}

// summaryOf returns the counts of a span in words.
func summaryOf(l *language, e taskview.CompletionStats) string {
	parts := []string{l.text("%s done", shown.Number(e.Done))}
	if e.Failed > 0 {
		parts = append(parts, l.text("%s failed", shown.Number(e.Failed)))
	}
	if e.Retries > 0 {
		parts = append(parts, l.plural(e.Retries, "%s retry", "%s retries"))
	}
	return strings.Join(parts, l.text(", "))
}

// barHeight returns the height of a bar in percent. The bar of a count above zero has at least the given minimum
// height, so that it is visible.
func barHeight(n, most int64, least float64) float64 {
	if n == 0 {
		return 0
	}
	return math.Max(least, 100*float64(n)/float64(most))
}

// perMinute formats a rate, with one decimal if it is below 10 and not whole.
func perMinute(rate float64) string {
	if rate < 10 && rate != math.Trunc(rate) {
		return fmt.Sprintf("%.1f", rate)
	}
	return shown.Number(int64(math.Round(rate)))
}

func (c *endedChart) drawLateness(list []taskview.CompletionStats, first time.Time) {
	top := 10 * time.Millisecond
	for _, e := range list {
		if e.Done > 0 {
			top = max(top, e.Lateness(0.99))
			c.LastP50, c.LastP99 = short(e.Lateness(0.5)), short(e.Lateness(0.99))
		}
	}
	top = roundUp(top)
	c.Late, c.HalfLate = short(top), short(top/2)
	c.P50, c.P99 = c.linePath(list, first, top, 0.5), c.linePath(list, first, top, 0.99)
}

// linePath returns the SVG path of a percentile, with gaps for time spans in which no task was done.
func (c *endedChart) linePath(list []taskview.CompletionStats, first time.Time, top time.Duration, share float64) string {
	var b strings.Builder
	var drawn time.Time
	for _, e := range list {
		x, y := float64(e.From.Sub(first))/float64(c.Period.Width)+0.5, 100-100*float64(e.Lateness(share))/float64(top)
		switch {
		case e.Done == 0 || x < 0:
			continue
		case e.From.Equal(drawn):
			_, _ = fmt.Fprintf(&b, "L%.2f %.2f", x, y)
		default:
			_, _ = fmt.Fprintf(&b, "M%.2f %.2fh.4", x, y)
		}
		drawn = e.To
	}
	return b.String()
}

// roundUp rounds up to 1, 2 or 5 times a power of ten.
func roundUp(d time.Duration) time.Duration {
	unit := math.Pow(10, math.Floor(math.Log10(float64(d))))
	for _, f := range []float64{1, 2, 5, 10} {
		if f*unit >= float64(d) {
			return time.Duration(f * unit)
		}
	}
	return d
}

// short formats a duration with at most three digits if it is below a minute.
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
