package page

import (
	"math"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Bins of the histogram, and the narrowest span into which one can zoom.
const (
	bins      = 60
	narrowest = time.Minute
)

// histogram is the pending tasks by due instant as a drawing: the x of a bar is its
// number, its height that of 100.
type histogram struct {
	Bars          []bar
	Ticks         []tick
	Max, Total    int64
	Before, After int64
	BeforeHref    string
	AfterHref     string
	From, To      stamp
	Zoomed        bool
	Queue         string
	OutHref       string // the span around, twice as long
	TasksHref     string
	Problem       string // why there is none
}

// bar is the tasks of one bin.
type bar struct {
	X        float64
	Y, H     float64
	Count    int64
	Href     string
	From, To stamp
	Width    string // how long the bin is
	Class    string
}

// tick is a label below the bars, at a fraction of the whole in percent.
type tick struct {
	Text, Until string
	ISO         string
}

func (p *Pages) histogram(r *request, o service.Overview) (histogram, error) {
	f := schedule.Filter{Queue: r.get("queue"), Status: schedule.StatusPending}
	from, err := r.instant("from")
	if err != nil {
		return histogram{}, err
	}
	to, err := r.instant("to")
	if err != nil {
		return histogram{}, err
	}
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return histogram{}, fieldError("to", "%s; expected an instant after from, %s", exact(to), exact(from))
	}
	if o.Status.Tasks == nil && len(o.Horizon) == 0 {
		return histogram{Problem: "There is no database of tasks, or it does not answer."}, nil
	}
	h, err := p.svc.Histogram(r.Context(), f, from, to, bins)
	if err != nil {
		return histogram{Problem: service.Told(r.who.Identity, err)}, nil
	}
	return draw(r, f, h, !from.IsZero() || !to.IsZero()), nil
}

// draw is pure.
func draw(r *request, f schedule.Filter, h service.Histogram, zoomed bool) histogram {
	v := histogram{From: r.stamp(h.From), To: r.stamp(h.To), Before: h.Before, After: h.After, Zoomed: zoomed, Queue: f.Queue}
	for _, b := range h.Bins {
		v.Max, v.Total = max(v.Max, b.Count), v.Total+b.Count
	}
	top := max(v.Max, 1)
	for i, b := range h.Bins {
		height := 0.0
		if b.Count > 0 {
			height = math.Max(2, 100*float64(b.Count)/float64(top))
		}
		one := bar{X: float64(i), Y: 100 - height, H: height, Count: b.Count, From: r.stamp(b.From), To: r.stamp(b.To), Width: topology.FormatDuration(b.To.Sub(b.From).Round(time.Second))}
		one.Href = spanHref(f, b.From, b.To)
		if !b.To.After(r.now) {
			one.Class = "overdue"
		}
		v.Bars = append(v.Bars, one)
	}
	const labels = 6
	for i := range labels {
		if len(h.Bins) == 0 {
			break
		}
		at := h.Bins[min(i*len(h.Bins)/(labels-1), len(h.Bins)-1)].From
		if i == labels-1 {
			at = h.To
		}
		s := r.stamp(at)
		v.Ticks = append(v.Ticks, tick{Text: axisText(at.In(r.prefs.zone), r.now, h.To.Sub(h.From)), Until: s.Until, ISO: s.ISO})
	}
	if !h.From.IsZero() {
		half := h.To.Sub(h.From) / 2
		v.OutHref = nowHref(f, h.From.Add(-half), h.To.Add(half))
		f.DueFrom, f.DueTo = h.From, h.To
		v.TasksHref = withQuery("tasks", filterValues(f))
		f.DueFrom, f.DueTo = time.Time{}, h.From
		v.BeforeHref = withQuery("tasks", filterValues(f))
		f.DueFrom, f.DueTo = h.To, time.Time{}
		v.AfterHref = withQuery("tasks", filterValues(f))
	}
	return v
}

// spanHref leads into a span: the histogram of it, or its tasks where it is short.
func spanHref(f schedule.Filter, from, to time.Time) string {
	if to.Sub(from) >= narrowest {
		return nowHref(f, from, to)
	}
	f.DueFrom, f.DueTo = from, to
	return withQuery("tasks", filterValues(f))
}

func nowHref(f schedule.Filter, from, to time.Time) string {
	return link("./", "queue", f.Queue, "from", exact(from), "to", exact(to))
}

// axisText has what differs within a span, and from now.
func axisText(t, now time.Time, span time.Duration) string {
	const day = 24 * time.Hour
	away := t.Sub(now).Abs()
	switch {
	case span < 10*time.Minute:
		return t.Format("15:04:05")
	case away < day && t.YearDay() == now.YearDay():
		return t.Format("15:04")
	case away < 10*day || span < 10*day:
		return t.Format("2 Jan 15:04")
	case away < 200*day:
		return t.Format("2 Jan")
	}
	return t.Format("2 Jan 2006")
}
