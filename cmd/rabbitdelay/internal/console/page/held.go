package page

import (
	"cmp"
	"strconv"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// heldData is the data of the list of destinations that are paused or have a rate limit.
type heldData struct {
	Destinations []schedule.DestinationState
	Notice       string
	Most         int64 // the limit of each count of waiting tasks
	Suggest      service.Suggestions
}

var heldNotices = map[string]string{"pause": "The destination was paused.", "resume": "The destination was resumed.", "rate-limit": "The rate limit was set."}

func (p *Pages) held(r *request) (answer, error) {
	d := heldData{Notice: heldNotices[r.form.Get("done")], Most: taskview.MaxWaiting}
	var err error
	if d.Destinations, err = p.svc.Destinations(r.Context()); err != nil {
		return answer{}, err
	}
	if !r.still {
		d.Suggest, _ = p.svc.Suggest(r.Context()) // the page works without suggestions
	}
	return answer{name: "held", title: r.lang.text("Paused destinations and rate limits"), data: d, live: "live-held"}, nil
}

// heldFields lists the fields of the forms that change a destination, in addition to the destination.
var heldFields = map[string][]string{"resume": {"spread"}, "rate-limit": {"per-second", "burst"}}

// heldActData is the data of the page that asks for confirmation before a destination is changed.
type heldActData struct {
	Name, Queue, Exchange string
	Path, Label, Question string
	Detail, Unknown       string
	Spread, RateLimit     bool
	PerSecond             string
}

// destination returns the destination that a form specifies.
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
		data := heldActData{Name: cmp.Or(d.Queue, d.Exchange), Queue: d.Queue, Exchange: d.Exchange, Path: "destination-" + name}
		switch name {
		case "rate-limit":
			data.Label, data.Question, data.RateLimit, data.PerSecond = "Set the rate limit", "Set the rate limit of this destination", true, r.get("per-second")
			data.Detail = "The limit applies to all relays together and takes effect immediately. Tasks above the limit wait in the table. A relay that starts keeps this limit unless the limit in its file has changed."
		case "pause":
			data.Label, data.Question = "Pause", "Pause this destination?"
			data.Detail = "Its tasks stay in the table until it is resumed, and tasks that are already on the broker are recalled. Handlers that have started finish their tasks."
		default:
			data.Label, data.Question, data.Spread = "Resume", "Resume this destination?", true
			data.Detail = "Tasks that became due during the pause are sent. Tasks that become due later do not wait for them."
		}
		var held schedule.DestinationState
		if name == "resume" {
			if held, err = p.svc.Destination(r.Context(), d); err != nil {
				return answer{}, err
			}
		}
		if held.String() == "" {
			if data.Unknown, err = p.svc.UnknownDestination(r.Context(), d); err != nil {
				return answer{}, err
			}
		}
		return answer{name: "held-act", title: r.lang.text(data.Label) + " " + middle(40, data.Name), data: data}, nil
	}
}

func (p *Pages) doHeld(name string) handler {
	return func(r *request) (answer, error) {
		d, err := r.destination()
		if err != nil {
			return answer{}, err
		}
		switch name {
		case "rate-limit":
			err = p.setRateLimit(r, d)
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

func (p *Pages) setRateLimit(r *request, d topology.Destination) (err error) {
	x := schedule.RateLimit{Queue: d.Queue, Exchange: d.Exchange}
	if x.PerSecond, err = strconv.ParseFloat(r.get("per-second"), 64); err != nil {
		return fieldError("per-second", "%q; expected tasks a second, such as 50 or 0.1, or 0 for no rate limit", r.get("per-second"))
	}
	in := fields{request: r}
	if x.Burst = in.number("burst", 0, topology.MaxPerSecond); in.err != nil {
		return in.err
	}
	return p.svc.SetRateLimit(r.Context(), r.who.Identity, x)
}
