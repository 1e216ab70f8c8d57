package page

import (
	"strconv"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// heldData lists the destinations that are held back.
type heldData struct {
	Destinations []schedule.DestinationState
	Notice       string
	Most         int64
}

var heldNotices = map[string]string{"pause": "The destination was paused.", "resume": "The destination was resumed.", "ceiling": "The ceiling was set."}

func (p *Pages) held(r *request) (answer, error) {
	list, err := p.svc.Destinations(r.Context())
	return answer{name: "held", title: "Paused destinations and ceilings", data: heldData{list, heldNotices[r.form.Get("done")], schedule.MostWaiting}}, err
}

// heldActData is the data of the page that asks for confirmation before a destination is changed.
type heldActData struct {
	Name, Queue, Exchange string
	Path, Label, Question string
	Detail, Unknown       string
	Spread, Ceiling       bool
	PerSecond             string
}

// destination returns the destination in a form.
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
		switch name {
		case "ceiling":
			data.Label, data.Question, data.Ceiling, data.PerSecond = "Set the ceiling", "How many tasks a second?", true, r.get("per-second")
			data.Detail = "Over all relays, at once. What is beyond waits in the table. It stays when a relay starts, until the ceiling in its file is another one than before."
		case "pause":
			data.Label, data.Question = "Pause", "Pause this destination?"
			data.Detail = "Its tasks stay in the table until it is resumed, and those that the broker has are taken back. Handlers that have begun end their tasks."
		default:
			data.Label, data.Question, data.Spread = "Resume", "Resume this destination?", true
			data.Detail = "What came due in the pause is sent; what comes due later does not wait for it."
		}
		if name != "resume" {
			if data.Unknown, err = p.svc.UnknownDestination(r.Context(), d); err != nil {
				return answer{}, err
			}
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
		switch name {
		case "ceiling":
			err = p.setCeiling(r, d)
		case "pause":
			err = p.svc.PauseDestination(r.Context(), r.who.Identity, d)
		default:
			in := fields{request: r}
			spread := in.duration("spread")
			if err = in.err; err == nil {
				err = p.svc.ResumeDestination(r.Context(), r.who.Identity, d, spread)
			}
		}
		return answer{to: link("held", "done", name)}, err
	}
}

func (p *Pages) setCeiling(r *request, d topology.Destination) (err error) {
	x := schedule.Ceiling{Queue: d.Queue, Exchange: d.Exchange}
	if x.PerSecond, err = strconv.ParseFloat(r.get("per-second"), 64); err != nil {
		return fieldError("per-second", "%q; expected tasks a second, such as 50 or 0.1, or 0 for no ceiling", r.get("per-second"))
	}
	in := fields{request: r}
	if x.Burst = in.number("burst", 0, topology.MaxPerSecond); in.err != nil {
		return in.err
	}
	return p.svc.SetCeiling(r.Context(), r.who.Identity, x)
}
