package page

import (
	"math"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The number of bins of the histogram, and the shortest time span to which a user can zoom in.
const (
	bins      = 60
	narrowest = time.Minute
)

// histogram is the drawing of pending tasks by due time. The x of a bar is its index, and its height is a percentage.
// If all bins have the same width, the height is relative to the fullest bar. Otherwise the height is logarithmic in
// the number of tasks per hour, so that a wide bin does not have a higher bar because of its width.
type histogram struct {
	Bars          []bar
	Ticks         []tick
	Total         int64
	Top, Bottom   string    // the labels at the ends of the axis
	Lines         []float64 // the y coordinates of the horizontal lines
	Scale         string    // an explanation of the axis
	Before, After int64
	BeforeHref    string
	AfterHref     string
	From, To      stamp
	Zoomed        bool
	Queue         string
	OutHref       string // zooms out to twice the span
	TasksHref     string
	Problem       string // why there is no histogram
}

// bar is the bar of one bin.
type bar struct {
	X        float64
	Y, H     float64
	Count    int64
	Href     string
	From, To stamp
	Width    string // the duration of the bin
	Class    string
}

// tick is a label below the bars. The labels are evenly spaced.
type tick struct {
	Text, Until string
	ISO         string
}

func (p *Pages) histogram(r *request, o service.Overview) (histogram, error) {
	f := schedule.Filter{Queue: r.get("queue"), Status: schedule.StatusPending}
	in := fields{request: r}
	from, to := in.instant("from"), in.instant("to")
	if in.err != nil {
		return histogram{}, in.err
	}
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return histogram{}, fieldError("to", "%s; expected a time after from, which is %s", exact(to), exact(from))
	}
	if o.Status.Tasks == nil && len(o.Horizon) == 0 {
		return histogram{Problem: "There is no task database, or it does not answer."}, nil
	}
	h, err := p.svc.Histogram(r.Context(), f, from, to, bins)
	if err != nil {
		return histogram{Problem: service.Told(r.who.Identity, err)}, nil
	}
	return draw(r, f, h, !from.IsZero() || !to.IsZero()), nil
}

// draw converts a histogram to its drawing. It is a pure function.
func draw(r *request, f schedule.Filter, h service.Histogram, zoomed bool) histogram {
	v := histogram{From: r.stamp(h.From), To: r.stamp(h.To), Before: h.Before, After: h.After, Zoomed: zoomed, Queue: f.Queue}
	for _, b := range h.Bins {
		v.Total += b.Count
	}
	heights := v.scale(r.lang, h.Bins)
	for i, b := range h.Bins {
		height := heights[i]
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
		v.Ticks = append(v.Ticks, tick{Text: axisText(r.lang, at.In(r.prefs.zone), r.now, h.To.Sub(h.From)), Until: s.Until, ISO: s.ISO})
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

// scale sets the axis and returns the heights of the bars.
func (v *histogram) scale(l *language, bins []taskview.HistogramBucket) []float64 {
	heights := make([]float64, len(bins))
	if len(bins) == 0 {
		return heights
	}
	width := func(b taskview.HistogramBucket) time.Duration { return b.To.Sub(b.From) }
	var most int64
	least, high := math.Inf(1), 0.0 // tasks per hour
	even := true
	for _, b := range bins {
		most, even = max(most, b.Count), even && (width(b)-width(bins[0])).Abs() < time.Second
		if rate := hourly(b); rate > 0 {
			least, high = math.Min(least, rate), math.Max(high, rate)
		}
	}
	if even || most == 0 {
		for i, b := range bins {
			heights[i] = barHeight(b.Count, most, 2)
		}
		v.Top, v.Bottom, v.Lines = shown.Number(most), "0", []float64{0.5, 50}
		v.Scale = l.text("Tasks per %s.", topology.FormatDuration(width(bins[0]).Round(time.Second)))
		return heights
	}
	low, top := math.Floor(math.Log10(least)), math.Ceil(math.Log10(high))
	low = math.Min(low, top-1)
	for i, b := range bins {
		if rate := hourly(b); rate > 0 {
			heights[i] = math.Max(3, 100*(math.Log10(rate)-low)/(top-low))
		}
	}
	for y := low; y <= top; y++ {
		v.Lines = append(v.Lines, math.Max(0.5, 100-100*(y-low)/(top-low)))
	}
	v.Top, v.Bottom = decade(top), decade(low)
	shortest := width(bins[0])
	for _, b := range bins {
		shortest = min(shortest, width(b))
	}
	v.Scale = l.text("Tasks per hour, on a logarithmic scale. Bars further in the future cover longer periods, from %s to %s.",
		topology.FormatDuration(shortest.Round(time.Second)), topology.FormatDuration(width(bins[len(bins)-1]).Round(time.Hour)))
	return heights
}

// hourly returns the number of tasks per hour in a bin.
func hourly(b taskview.HistogramBucket) float64 {
	return float64(b.Count) / math.Max(b.To.Sub(b.From).Hours(), 1e-9)
}

// decade formats a power of ten.
func decade(exponent float64) string {
	if exponent < 0 {
		return strconv.FormatFloat(math.Pow(10, exponent), 'f', int(-exponent), 64)
	}
	return shown.Number(int64(math.Pow(10, exponent)))
}

// spanHref returns the address that shows a time span in detail: its histogram, or a list of its tasks if the span is
// short.
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

// axisText formats a time for an axis. Depending on the length of the axis and the distance from now, it shows seconds,
// leaves out the date or the time of day, or adds the year.
func axisText(l *language, t, now time.Time, span time.Duration) string {
	const day = 24 * time.Hour
	away := t.Sub(now).Abs()
	switch {
	case span < 10*time.Minute:
		return t.Format("15:04:05")
	case away < day && t.YearDay() == now.YearDay():
		return t.Format("15:04")
	case away < 10*day || span < 10*day:
		return t.Format(l.dates().day + " 15:04")
	case away < 200*day:
		return t.Format(l.dates().day)
	}
	return t.Format(l.dates().date)
}
