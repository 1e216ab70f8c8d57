package page

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// pageSize is the number of tasks on a page. Counting stops at countLimit to limit the load on the database.
const (
	pageSize   = 50
	countLimit = 10_000
)

// tasksData is the data of a page of tasks.
type tasksData struct {
	Form       url.Values // the values of the filter's fields
	Conditions []condition
	Statuses   []schedule.Status
	Tasks      []schedule.TaskRow
	Count      int64
	More       bool // there are more than Count
	First      bool // this is the first page
	FirstHref  string
	NextHref   string
	Bulk       []bulkLink
	ErrorsHref string // the same tasks grouped by error; empty if tasks of the filter's status have no errors
	Suggest    service.Suggestions
	Due, Ended column // Ended has no address unless the list is of ended tasks or ordered by their end
	Problem    string // why the filter could not be parsed
}

// column is the header of a sortable column of a list.
type column struct {
	Href string // sorts by this column, or reverses the order
	Aria string // the aria-sort value: ascending, descending, or none
}

// columnOf returns the header of a column in a list with the sort order sorted. The orders first and last are the
// column's ascending and descending order.
func columnOf(sorted, first, last schedule.Sort, filter url.Values) column {
	c := column{Aria: "none"}
	next := last
	switch sorted {
	case last:
		c.Aria, next = "descending", first
	case first:
		c.Aria = "ascending"
	}
	v := maps.Clone(filter)
	v.Set("sort", string(next))
	if next == schedule.SortDue {
		v.Set("sort", "due")
	}
	c.Href = withQuery("tasks", v)
	return c
}

// readSort parses the order of a list. By default, tasks are ordered by due time, and ended tasks by the time at which
// they ended, newest first.
func readSort(r *request, s schedule.Status) (schedule.Sort, error) {
	switch x := r.get("sort"); {
	case x == "" && slices.Contains(finished, s):
		return schedule.SortEndedLast, nil
	case x == "" || x == "due":
		return schedule.SortDue, nil
	case slices.Contains([]schedule.Sort{schedule.SortDueLast, schedule.SortEnded, schedule.SortEndedLast}, schedule.Sort(x)):
		return schedule.Sort(x), nil
	default:
		return "", fieldError("sort", "%q; expected due, due-last, ended or ended-last", x)
	}
}

// bulkLink links to a change of all tasks that the filter selects.
type bulkLink struct{ Label, Href, Kind string }

func (p *Pages) tasks(r *request) (answer, error) {
	d := tasksData{Form: url.Values{}, Statuses: statuses, First: true}
	for _, name := range filterFields {
		d.Form.Set(name, r.get(name))
	}
	a := answer{name: "tasks", title: r.lang.text("Tasks")}
	f, err := readFilter(r)
	if err == nil {
		f.Sort, err = readSort(r, f.Status)
	}
	if f.After = schedule.Cursor(r.form.Get("after")); err == nil {
		if bad := taskview.CheckCursor(f.After); bad != nil {
			err = fieldError("after", "%v", bad)
		}
	}
	if err != nil {
		d.Problem = err.Error()
		a.data, a.status = d, describe(err).Status
		return a, nil
	}
	d.Conditions = conditions(r, f)
	values := filterValues(f)
	if r.get("sort") != "" {
		values.Set("sort", r.get("sort"))
	} else {
		values.Del("sort")
	}
	asked := maps.Clone(d.Form) // with relative times as they were typed
	maps.DeleteFunc(asked, func(_ string, v []string) bool { return v[0] == "" })
	d.Due = columnOf(f.Sort, schedule.SortDue, schedule.SortDueLast, asked)
	if slices.Contains(finished, f.Status) || f.Sort == schedule.SortEnded || f.Sort == schedule.SortEndedLast {
		d.Ended = columnOf(f.Sort, schedule.SortEnded, schedule.SortEndedLast, asked)
	}
	d.First, d.FirstHref = f.After == "", withQuery("tasks", values)
	f.Limit = pageSize
	page, err := p.svc.Tasks(r.Context(), r.who.Identity, f)
	if err != nil {
		return a, err
	}
	d.Tasks = page.Tasks
	if page.Next != "" {
		next := maps.Clone(values)
		next.Set("after", string(page.Next))
		d.NextHref = withQuery("tasks", next)
	}
	a.download = downloadOf("tasks", values)
	f.After, f.Limit = "", 0
	if f.Status == "" || f.Status == schedule.StatusFailed || f.Status == schedule.StatusPending {
		grouped := maps.Clone(asked)
		grouped.Del("sort")
		d.ErrorsHref = withQuery("task-errors", grouped)
	}
	if d.Count, d.More, err = p.svc.Count(r.Context(), f, countLimit); err != nil {
		return a, err
	}
	for _, x := range acts {
		if f.Status == "" || x.takes(f.Status) {
			v := url.Values{"action": {string(x.kind)}}
			maps.Copy(v, values)
			v.Del("sort")
			d.Bulk = append(d.Bulk, bulkLink{x.label, withQuery("bulk", v), string(x.kind)})
		}
	}
	if !r.still {
		if d.Suggest, err = p.svc.Suggest(r.Context()); err != nil {
			d.Suggest.Tags = nil // the page works without suggestions
		}
	}
	if after := r.form.Get("after"); after != "" {
		asked.Set("after", after)
	}
	a.live = withQuery("live-tasks", asked)
	a.data = d
	return a, nil
}

// statuses lists the statuses in the order of a task's life cycle.
var statuses = []schedule.Status{
	schedule.StatusPending, schedule.StatusRunning, schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed,
}

// filterFields lists the URL parameters of a filter.
var filterFields = []string{"queue", "exchange", "status", "from", "to", "prefix", "unique-key", "tag", "header", "value", "error", "error-like", "sort", chosenField}

// chosenField is the parameter with the ids of the selected rows, one per line. The ids are escaped, because they may
// contain any character.
const chosenField = "chosen"

// readFilter parses a filter from a URL or a form. Times may be in any format that schedule.ParseInstant accepts. A
// time without a zone is in the user's time zone.
func readFilter(r *request) (schedule.Filter, error) {
	in := fields{request: r}
	var ids []string
	for _, line := range lines(strings.Join(r.form[chosenField], "\n")) {
		id, err := url.QueryUnescape(line)
		if err != nil {
			ids = nil
			in.failf(chosenField, "%q; expected an escaped id, as the form sends it", line)
			break
		}
		ids = append(ids, id)
	}
	f := schedule.Filter{
		Queue: r.get("queue"), Exchange: r.get("exchange"), Status: schedule.Status(r.get("status")), IDPrefix: r.get("prefix"), UniqueKey: r.form.Get("unique-key"), IDs: ids,
		Tag: r.get("tag"), Header: r.get("header"), HeaderValue: r.get("value"), Error: r.get("error"), ErrorLike: r.get("error-like"), DueFrom: in.instant("from"), DueTo: in.instant("to"), WithoutBody: true,
	}
	if f.Status != "" && !slices.Contains(statuses, f.Status) {
		in.failf("status", "%q; expected one of %v, or an empty field", f.Status, statuses)
	}
	return f, in.err
}

// filterValues returns the URL parameters of a filter.
func filterValues(f schedule.Filter) url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"queue": f.Queue, "exchange": f.Exchange, "status": string(f.Status), "from": exact(f.DueFrom), "to": exact(f.DueTo),
		"prefix": f.IDPrefix, "unique-key": f.UniqueKey, "tag": f.Tag, "header": f.Header, "value": f.HeaderValue, "error": f.Error, "error-like": f.ErrorLike, "sort": string(f.Sort),
		chosenField: escaped(f.IDs),
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// escaped encodes ids as chosenField needs them.
func escaped(ids []string) string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = url.QueryEscape(id)
	}
	return strings.Join(list, "\n")
}

// exact formats a time for a URL, such as 2026-12-24T08:00:00Z. The zero time is an empty string.
func exact(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// condition is a condition of a filter in words.
type condition struct{ Name, Value string }

// conditions describes a filter in words. The result is empty if the filter selects all tasks.
func conditions(r *request, f schedule.Filter) []condition {
	var list []condition
	add := func(name, value string) {
		if value != "" {
			list = append(list, condition{name, value})
		}
	}
	l := r.lang
	add(l.text("status is"), l.text(string(f.Status)))
	add(l.text("queue is"), f.Queue)
	add(l.text("exchange is"), f.Exchange)
	if !f.DueFrom.IsZero() {
		add(l.text("due from"), r.stamp(f.DueFrom).Text)
	}
	if !f.DueTo.IsZero() {
		add(l.text("due before"), r.stamp(f.DueTo).Text)
	}
	add(l.text("ID starts with"), f.IDPrefix)
	add(l.text("unique key is"), f.UniqueKey)
	if n := len(f.IDs); n > 0 {
		add(l.text("ID is one of %s", shown.Number(n)), l.listed(f.IDs))
	}
	add(l.text("tag is"), f.Tag)
	if f.Header != "" {
		add(l.text("header is"), f.Header+": "+f.HeaderValue)
	}
	add(l.text("error contains"), f.Error)
	add(l.text("error is like"), f.ErrorLike)
	return list
}
