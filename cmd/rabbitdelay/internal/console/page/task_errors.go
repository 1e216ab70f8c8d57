package page

import (
	"cmp"
	"maps"
	"net/url"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// taskErrorsData is the data of the page that groups the selected tasks by their errors.
type taskErrorsData struct {
	taskview.ErrorGroups

	Lead       string
	Conditions []condition
	Orders     []choice
	Rows       []taskErrorRow
	TasksHref  string // the same tasks as a list
}

// taskErrorRow is a group with links to its tasks. A group of tasks without an error has no links.
type taskErrorRow struct {
	taskview.ErrorGroup

	Destination string
	TasksHref   string
	Bulk        []bulkLink
}

// taskErrorOrders lists the sort orders in the order of their links.
var taskErrorOrders = []struct {
	is    taskview.ErrorGroupOrder
	label string
}{{taskview.GroupsNewest, "Newest first"}, {taskview.GroupsOldest, "Oldest first"}, {taskview.GroupsMost, "Largest first"}}

func (p *Pages) taskErrors(r *request) (answer, error) {
	return p.taskErrorsUpTo(r, taskview.DefaultGroups)
}

// taskErrorsUpTo answers as taskErrors does, with the given limit on the number of groups.
func (p *Pages) taskErrorsUpTo(r *request, limit int) (answer, error) {
	f, err := readFilter(r)
	if err != nil {
		return answer{}, err
	}
	f.Status = cmp.Or(f.Status, schedule.StatusFailed)
	order := cmp.Or(taskview.ErrorGroupOrder(r.get("order")), taskview.GroupsNewest)
	d := taskErrorsData{Conditions: conditions(r, f), TasksHref: withQuery("tasks", filterValues(f))}
	known := false
	for _, o := range taskErrorOrders {
		v := filterValues(f)
		v.Set("order", string(o.is))
		d.Orders = append(d.Orders, choice{r.lang.text(o.label), withQuery("task-errors", v), o.is == order})
		known = known || o.is == order
	}
	if !known {
		return answer{}, fieldError("order", "%q; expected newest, oldest or most", order)
	}
	if d.ErrorGroups, err = p.svc.TaskErrors(r.Context(), r.who.Identity, f, taskview.ErrorGroupOptions{Order: order, Limit: limit}); err != nil {
		return answer{}, err
	}
	d.Lead = r.lang.plural(int64(d.Sampled), "%s task (%s), grouped by error. Numbers, IDs and quoted parts of an error are ignored.", "%s tasks (%s), grouped by error. Numbers, IDs and quoted parts of an error are ignored.", r.lang.text(string(f.Status)))
	for _, g := range d.Groups {
		d.Rows = append(d.Rows, taskErrorRowOf(r.lang, f, g))
	}
	return answer{name: "task-errors", title: r.lang.text("Tasks by error"), data: d, download: downloadOf("task-errors", r.form)}, nil
}

func taskErrorRowOf(l *language, f schedule.Filter, g taskview.ErrorGroup) taskErrorRow {
	row := taskErrorRow{ErrorGroup: g, Destination: g.Queue}
	if g.Exchange != "" {
		row.Destination = l.text("exchange") + " " + g.Exchange
	}
	row.Destination = shown.Line(row.Destination)
	if g.ErrorLike == "" {
		return row
	}
	f.Queue, f.Exchange, f.ErrorLike = g.Queue, g.Exchange, g.ErrorLike
	values := filterValues(f)
	row.TasksHref = withQuery("tasks", values)
	for _, x := range acts {
		if x.takes(f.Status) && !x.at && !x.by || x.takes(schedule.StatusFailed) && f.Status == schedule.StatusFailed {
			v := url.Values{"action": {string(x.kind)}}
			maps.Copy(v, values)
			row.Bulk = append(row.Bulk, bulkLink{x.label, withQuery("bulk", v), string(x.kind)})
		}
	}
	return row
}
