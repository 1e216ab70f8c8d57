package page

import (
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// nowData is the data of the first page.
type nowData struct {
	service.Overview

	Verdict   verdict
	Horizon   []horizonCell
	Histogram histogram
	Clock     clock
	Ended     endedChart
	Dead      []deadLine
	Relays    []relay
	Unhandled int64
	MayHold   bool          // it is unknown whether consumers hold dead letters
	Age       time.Duration // the age of the overview
}

// relay is a relay that is listed in the database. Runs is false if the relay has not been seen lately.
type relay struct {
	taskview.Relay

	Runs bool
}

// horizonCell is the number of tasks that are due within a time span, with a link to them.
type horizonCell struct {
	service.HorizonCount

	Label, Href string
	Bad         bool
}

func (p *Pages) now(r *request) (answer, error) {
	o, err := p.svc.Overview(r.Context(), r.who.Identity)
	if err != nil {
		return answer{}, err
	}
	d, err := p.nowData(r, o)
	live := link("live", "from", r.get("from"), "to", r.get("to"), "queue", r.get("queue"), "over", r.get("over"))
	return answer{name: "now", title: r.lang.text("Now"), data: d, live: live}, err
}

func (p *Pages) nowData(r *request, o service.Overview) (nowData, error) {
	h, err := p.histogram(r, o)
	if err != nil {
		return nowData{}, err
	}
	d := nowData{
		Overview: o, Histogram: h, Verdict: judge(r.lang, o, r.now), Horizon: horizon(o), Clock: clockOf(o.Status.Layouts), Ended: chartEnded(r, o), Dead: deadLines(o),
		Age: max(0, r.now.Sub(o.At)).Truncate(time.Second),
	}
	d.MayHold = o.Status.Parked.Held == nil || slices.ContainsFunc(o.Status.Destinations, func(x status.Destination) bool { return x.Dead != nil && x.Dead.Held == nil })
	if t := o.Status.Tasks; t != nil {
		for _, x := range t.Relays {
			runs := x.Running(o.TasksAt())
			x.Seen = x.Seen.Add(-time.Duration(t.Skew)) // by this process's clock, like the other times on the page
			d.Relays = append(d.Relays, relay{x, runs})
		}
	}
	return d, nil
}

// deadLine counts the messages in one queue that were dead-lettered or parked for one reason.
type deadLine struct {
	Queue    string
	Messages int64
	Reason   string // empty if unknown
	Error    string // last error of the newest message
	Seen     bool   // the overview has peeked at the messages
	Unknown  bool   // there may be more messages
}

// deadLines returns the messages in the dead-letter queues and the parked queue. Messages that the overview has not
// peeked at have no reason.
func deadLines(o service.Overview) []deadLine {
	var list []deadLine
	add := func(l status.DeadLetters) {
		for _, g := range l.Groups {
			list = append(list, deadLine{Queue: l.Queue, Messages: int64(g.Messages), Reason: g.Reason, Error: g.Error, Seen: true})
		}
		if rest := l.Messages - int64(l.Sampled); rest > 0 || l.Unknown {
			list = append(list, deadLine{Queue: l.Queue, Messages: rest, Unknown: l.Unknown})
		}
	}
	for _, d := range o.Status.Destinations {
		if d.Dead != nil {
			add(*d.Dead)
		}
	}
	add(o.Status.Parked)
	return list
}

// horizonLabels maps the service's names of time spans to labels.
var horizonLabels = map[string]string{
	"overdue": "Overdue", "1m": "Next minute", "1h": "Next hour", "1d": "Next day", "7d": "Next 7 days", "30d": "Next 30 days", "later": "Later",
}

func horizon(o service.Overview) []horizonCell {
	cells := make([]horizonCell, 0, len(o.Horizon))
	var from time.Time
	for _, c := range o.Horizon {
		label := horizonLabels[c.Name]
		if label == "" {
			label = c.Name
		}
		f := schedule.Filter{Status: schedule.StatusPending, DueFrom: from, DueTo: c.Until}
		cells = append(cells, horizonCell{HorizonCount: c, Label: label, Href: withQuery("tasks", filterValues(f)), Bad: c.Name == "overdue" && c.Count > 0})
		from = c.Until
	}
	return cells
}
