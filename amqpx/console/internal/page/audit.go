package page

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

// auditData is who did what.
type auditData struct {
	Target   string
	Entries  []service.Entry
	Jobs     []service.Job
	NextHref string
	First    bool
}

const auditPage, auditJobs = 50, 10

func (p *Pages) audit(r *request) (answer, error) {
	d := auditData{Target: r.form.Get("target"), First: r.get("before") == ""}
	var err error
	if d.Entries, err = p.svc.Audit(r.Context(), r.who.Identity, d.Target, r.get("before"), auditPage); err != nil {
		return answer{}, err
	}
	if n := len(d.Entries); n == auditPage {
		d.NextHref = link("audit", "target", d.Target, "before", d.Entries[n-1].ID)
	}
	if d.First && d.Target == "" {
		if d.Jobs, err = p.svc.Jobs(r.Context(), r.who.Identity, auditJobs); err != nil {
			return answer{}, err
		}
	}
	return answer{name: "audit", title: "Audit", data: d}, nil
}
