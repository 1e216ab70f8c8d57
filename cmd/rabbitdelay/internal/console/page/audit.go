package page

import (
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// auditData is the data of the audit page: who changed what.
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
	a := answer{name: "audit", title: r.lang.text("Audit"), data: d}
	a.download = downloadOf("audit", nonEmpty("target", d.Target))
	if d.First {
		a.live = link("live-audit", "target", d.Target)
	}
	return a, nil
}

// jobData is the data of the page of a job.
type jobData struct {
	service.Job

	Running   bool
	Resumable bool
	BackHref  string
	Kept      string // the address of the messages that the job has discarded
}

func (p *Pages) job(r *request) (answer, error) {
	j, err := p.svc.Job(r.Context(), r.who.Identity, r.form.Get("id"))
	if err != nil {
		return answer{}, err
	}
	d := jobData{Job: j, Running: j.State == service.JobRunning, BackHref: "tasks"}
	d.Resumable = j.State == service.JobInterrupted || j.State == service.JobStopped || j.State == service.JobFailed
	switch j.Entry.Action {
	case "requeue", "discard":
		d.BackHref = link("dead-queue", "queue", j.Entry.Target)
		if j.Entry.Action == "discard" && !d.Running && j.Done > 0 {
			d.Kept = "api/v1/jobs/" + j.ID + "/messages"
		}
	case "retire":
		d.BackHref = "layouts"
	}
	return answer{name: "job", title: r.lang.text("Job"), data: d}, nil
}

// jobActs lists the ways to change a job.
var jobActs = map[string]struct{ label, question string }{
	"stop":     {"Stop", "Stop this job after the current step? Its changes so far are kept."},
	"continue": {"Continue", "Continue this job from where it stopped?"},
}

func (p *Pages) askJob(name string) handler {
	return func(r *request) (answer, error) {
		j, err := p.svc.Job(r.Context(), r.who.Identity, r.form.Get("id"))
		if err != nil {
			return answer{}, err
		}
		a := jobActs[name]
		return answer{name: "task-act", title: r.lang.text(a.label), data: actData{
			Label: a.label, Question: a.question, Path: "job-" + name, IDField: "id", ID: j.ID, BackHref: link("job", "id", j.ID),
			Detail: r.lang.say("%s: %s", r.lang.action(j.Entry.Action), isolated(shown.Line(shown.OneLine(j.Entry.Detail)))),
		}}, nil
	}
}

func (p *Pages) doJob(name string) handler {
	return func(r *request) (answer, error) {
		do := p.svc.StopJob
		if name == "continue" {
			do = p.svc.ContinueJob
		}
		j, err := do(r.Context(), r.who.Identity, r.form.Get("id"))
		return answer{to: link("job", "id", j.ID)}, err
	}
}
