package page

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
)

// layoutsData are the sets of delay queues.
type layoutsData struct {
	Layouts []status.Layout
	Earlier bool   // there is one to retire
	Blind   string // why there is nothing
}

func (p *Pages) layouts(r *request) (answer, error) {
	o, err := p.svc.Overview(r.Context(), r.who.Identity)
	if err != nil {
		return answer{}, err
	}
	d := layoutsData{Layouts: o.Status.Layouts, Blind: o.Blind()}
	for _, l := range d.Layouts {
		d.Earlier = d.Earlier || l.Earlier
	}
	return answer{name: "layouts", title: "Layouts", data: d}, nil
}

// retireData is what a retirement would do.
type retireData struct{ service.RetirePlan }

func (p *Pages) askRetire(r *request) (answer, error) {
	plan, err := p.svc.RetirePlan(r.Context())
	if err != nil {
		return answer{}, err
	}
	return answer{name: "retire", title: "Retire earlier layouts", data: retireData{plan}}, nil
}

func (p *Pages) doRetire(r *request) (answer, error) {
	j, err := p.svc.Retire(r.Context(), r.who.Identity)
	return answer{to: link("job", "id", j.ID)}, err
}
