package page

import (
	"maps"
	"net/url"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// pageSize is how many tasks a page has, and countLimit up to how many it counts:
// counting more would cost the database more than it tells.
const (
	pageSize   = 50
	countLimit = 10_000
)

// tasksData is a page of tasks.
type tasksData struct {
	Form       url.Values // what the filter's fields have
	Conditions []condition
	Statuses   []schedule.Status
	Tasks      []schedule.Task
	Count      int64
	More       bool // than Count
	First      bool // nothing lies before this page
	FirstHref  string
	NextHref   string
	Bulk       []bulkLink
	LiveHref   string
	Problem    string // why the filter was not understood
}

// bulkLink leads to the question whether to change all that the filter chooses.
type bulkLink struct{ Label, Href string }

func (p *Pages) tasks(r *request) (answer, error) {
	d := tasksData{Form: url.Values{}, Statuses: statuses, First: true}
	for _, name := range filterFields {
		d.Form.Set(name, r.get(name))
	}
	a := answer{name: "tasks", title: "Tasks"}
	f, err := readFilter(r)
	if err == nil {
		f.After, err = readCursor(r)
	}
	if err != nil {
		d.Problem, a.data, a.status = err.Error(), d, describe(err).Status
		return a, nil
	}
	d.Conditions = conditions(r, f)
	values := filterValues(f)
	d.First, d.FirstHref = f.After.ID == "", withQuery("tasks", values)
	f.Limit = pageSize
	page, err := p.svc.Tasks(r.Context(), r.who.Identity, f)
	if err != nil {
		return a, err
	}
	d.Tasks = page.Tasks
	if page.Next.ID != "" {
		next := filterValues(f)
		next.Set("after", page.Next.String())
		d.NextHref = withQuery("tasks", next)
	}
	f.After, f.Limit = schedule.Cursor{}, 0
	if d.Count, d.More, err = p.svc.Count(r.Context(), f, countLimit); err != nil {
		return a, err
	}
	d.Bulk = bulkLinks(f.Status, values)
	asked := maps.Clone(d.Form) // relative instants go on
	maps.DeleteFunc(asked, func(_ string, v []string) bool { return v[0] == "" })
	if after := r.form.Get("after"); after != "" {
		asked.Set("after", after)
	}
	d.LiveHref = withQuery("live-tasks", asked)
	a.data = d
	return a, nil
}

func readCursor(r *request) (schedule.Cursor, error) {
	s := r.form.Get("after")
	if s == "" {
		return schedule.Cursor{}, nil
	}
	c, err := schedule.ParseCursor(s)
	if err != nil {
		return c, fieldError("after", "%v", err)
	}
	return c, nil
}

// bulkLinks are what can be done to tasks of a status, or of any.
func bulkLinks(s schedule.Status, filter url.Values) []bulkLink {
	var list []bulkLink
	for _, b := range bulkKinds {
		if s != "" && !b.takes(s) {
			continue
		}
		v := url.Values{"action": {b.kind}}
		maps.Copy(v, filter)
		list = append(list, bulkLink{b.label, withQuery("bulk", v)})
	}
	return list
}
