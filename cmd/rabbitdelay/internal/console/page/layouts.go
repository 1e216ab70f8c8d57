package page

import (
	"fmt"
	"math"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// layoutsData is the data of the list of layouts of delay queues.
type layoutsData struct {
	Layouts []status.Layout
	Earlier bool   // there is a layout to retire
	Blind   string // why there is nothing to show
	Partial bool   // only the layouts of the settings could be read
}

func (p *Pages) layouts(r *request) (answer, error) {
	o, err := p.svc.Overview(r.Context(), r.who.Identity)
	if err != nil {
		return answer{}, err
	}
	d := layoutsData{Layouts: o.Status.Layouts, Blind: o.Blind(), Partial: o.Status.Broker != nil && !o.Status.Broker.Managed()}
	for _, l := range d.Layouts {
		d.Earlier = d.Earlier || l.Earlier
	}
	return answer{name: "layouts", title: r.lang.text("Layouts"), data: d, live: "live-layouts"}, nil
}

func (p *Pages) askRetire(r *request) (answer, error) {
	plan, err := p.svc.RetirePlan(r.Context())
	if err != nil {
		return answer{}, err
	}
	return answer{name: "retire", title: r.lang.text("Retire earlier layouts"), data: plan}, nil
}

func (p *Pages) doRetire(r *request) (answer, error) {
	j, err := p.svc.Retire(r.Context(), r.who.Identity)
	return answer{to: link("job", "id", j.ID)}, err
}

// clock shows the messages in delay queues by delay. It has a ring for each unit of time, and the ring of the shortest
// unit is outermost.
type clock struct {
	Rings []ring
	Total int64
	// Unknown means that there may be more messages, because some delay queues do not report how many messages they
	// have.
	Unknown bool
	// ReadyOnly means that only ready messages were counted. The queues may have others, which the broker is
	// dead-lettering.
	ReadyOnly bool
}

// ring contains the queues whose delays have the same unit, with a cell for each number of units.
type ring struct {
	Name   string
	Unit   time.Duration
	Cells  []cell
	Total  int64
	Queues int // the number of queues that are not empty
	Most   string
}

// cell contains the queues whose delay is Name.
type cell struct {
	Name  string
	Count int64
	Heat  int // 0 for empty to 5 for the highest count
	Path  string
}

const (
	ringDay   = 24 * time.Hour
	ringMonth = 32 * ringDay
	clockSize = 240.0 // the width and height of the drawing
)

// ringUnits are the units of the clock layout, longest first. Queues of other layouts are added to the cells that
// match their delays.
var ringUnits = []struct {
	name  string
	unit  time.Duration
	cells int
}{
	{"months", ringMonth, 12}, {"days", ringDay, 32}, {"hours", time.Hour, 24},
	{"minutes", time.Minute, 60}, {"seconds", time.Second, 60}, {"hundredths", 10 * time.Millisecond, 100},
}

// clockOf counts the waiting messages by delay. It is a pure function.
func clockOf(layouts []status.Layout) clock {
	var c clock
	most := int64(0)
	for i, u := range ringUnits {
		r := ring{Name: u.name, Unit: u.unit, Cells: make([]cell, u.cells)}
		for k := range r.Cells {
			r.Cells[k].Name = topology.FormatDuration(time.Duration(k) * u.unit)
			r.Cells[k].Path = sector(i, k, u.cells)
		}
		c.Rings = append(c.Rings, r)
	}
	for _, l := range layouts {
		c.Unknown, c.ReadyOnly = c.Unknown || l.Waiting.Unknown, c.ReadyOnly || l.Waiting.InTransit() == nil
		for _, d := range l.Delays {
			r := &c.Rings[ringOf(time.Duration(d.TTL))]
			k := min(int(time.Duration(d.TTL)/r.Unit), len(r.Cells)-1)
			n := d.Waiting.Total()
			r.Cells[k].Count += n
			r.Total, c.Total = r.Total+n, c.Total+n
			r.Queues++
		}
	}
	for i := range c.Rings {
		var top int64
		for _, x := range c.Rings[i].Cells {
			if x.Count > top {
				top, c.Rings[i].Most = x.Count, x.Name
			}
		}
		most = max(most, top)
	}
	for i := range c.Rings {
		for k := range c.Rings[i].Cells {
			c.Rings[i].Cells[k].Heat = heat(c.Rings[i].Cells[k].Count, most)
		}
	}
	return c
}

// ringOf returns the ring of the largest unit that is not longer than the delay.
func ringOf(ttl time.Duration) int {
	for i, u := range ringUnits {
		if ttl >= u.unit {
			return i
		}
	}
	return len(ringUnits) - 1
}

// heat returns a level from 0 to 5. It is logarithmic, so that a single message is visible next to a million.
func heat(n, most int64) int {
	const steps = 5
	if n <= 0 {
		return 0
	}
	if most <= 1 {
		return steps
	}
	return 1 + int(math.Floor((steps-1)*math.Log(float64(n))/math.Log(float64(most))+1e-9))
}

// sector returns the outline of a cell as an SVG path. Cell 0 is at the top, and the others follow clockwise.
func sector(ring, k, of int) string {
	const (
		hole, width, gap = 32.0, 13.0, 1.5
		middle           = clockSize / 2
	)
	inner := hole + float64(ring)*(width+gap)
	outer := inner + width
	step := 2 * math.Pi / float64(of)
	pad := math.Min(step*0.12, 0.02)
	a, b := float64(k)*step+pad, float64(k+1)*step-pad
	at := func(radius, angle float64) string {
		return fmt.Sprintf("%.2f %.2f", middle+radius*math.Sin(angle), middle-radius*math.Cos(angle))
	}
	return fmt.Sprintf("M%sA%.2f %.2f 0 0 1 %sL%sA%.2f %.2f 0 0 0 %sZ", at(outer, a), outer, outer, at(outer, b), at(inner, b), inner, inner, at(inner, a))
}
