package page

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// heldData are the destinations that are held back.
type heldData struct {
	Destinations []schedule.DestinationState
	Notice       string
	Most         int64
}

var heldNotices = map[string]string{"pause": "The destination was paused.", "resume": "The destination was resumed."}

func (p *Pages) held(r *request) (answer, error) {
	list, err := p.svc.Destinations(r.Context())
	return answer{name: "held", title: "Paused destinations and ceilings", data: heldData{list, heldNotices[r.form.Get("done")], schedule.MostWaiting}}, err
}

// heldActData is the question before a change of one.
type heldActData struct {
	Name, Queue, Exchange string
	Path, Label, Question string
	Detail                string
	Spread                bool
}

// destination is that of a form.
func (r *request) destination() (topology.Destination, error) {
	d := topology.Destination{Queue: r.get("queue"), Exchange: r.get("exchange")}
	if (d.Queue == "") == (d.Exchange == "") {
		return d, fieldError("queue", "expected a queue or an exchange")
	}
	return d, nil
}

func (p *Pages) askHeld(name string) handler {
	return func(r *request) (answer, error) {
		d, err := r.destination()
		if err != nil {
			return answer{}, err
		}
		x := schedule.DestinationState{Queue: d.Queue, Exchange: d.Exchange}
		data := heldActData{Name: x.Name(), Queue: d.Queue, Exchange: d.Exchange, Path: "destination-" + name}
		if name == "pause" {
			data.Label, data.Question = "Pause", "Pause this destination?"
			data.Detail = "Its tasks stay in the table until it is resumed, and those that the broker has are taken back. Handlers that have begun end their tasks."
		} else {
			data.Label, data.Question, data.Spread = "Resume", "Resume this destination?", true
			data.Detail = "What came due in the pause is sent; what comes due later does not wait for it."
		}
		return answer{name: "held-act", title: data.Label + " " + shown.Line(shown.Shorten(x.Name(), 40)), data: data}, nil
	}
}

func (p *Pages) doHeld(name string) handler {
	return func(r *request) (answer, error) {
		d, err := r.destination()
		if err != nil {
			return answer{}, err
		}
		if name == "pause" {
			err = p.svc.PauseDestination(r.Context(), r.who.Identity, d)
		} else if spread, wrong := r.duration("spread"); wrong != nil {
			err = wrong
		} else {
			err = p.svc.ResumeDestination(r.Context(), r.who.Identity, d, spread)
		}
		return answer{to: link("held", "done", name)}, err
	}
}

// addHeld adds the destinations that are paused.
func addHeld(o service.Overview, add addReason) {
	if o.Status.Tasks == nil {
		return
	}
	for _, d := range o.Status.Tasks.Held {
		if d.Paused() {
			add(levelWarning, "held", "Tasks for %s are paused since %s%s; %s", shown.Line(shown.Shorten(d.Name(), 60)), shown.Instant(d.PausedAt), by(d.PausedBy), shown.Count(d.Waiting, "is due", "are due"))
		}
	}
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + shown.Line(who)
}
