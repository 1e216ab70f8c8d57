package page

import (
	"net/url"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// statuses in the order of a task's life.
var statuses = []schedule.Status{
	schedule.StatusPending, schedule.StatusRunning, schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed,
}

// filterFields are the names of a filter's parts in a URL.
var filterFields = []string{"queue", "exchange", "status", "from", "to", "prefix", "unique-key", "tag", "header", "value", "sort", chosenField}

// chosenField has the ids of rows that were selected, one a line, escaped: an id may have any
// characters.
const chosenField = "chosen"

func (r *request) chosen() (ids []string, err error) {
	for _, line := range lines(strings.Join(r.form[chosenField], "\n")) {
		id, err := url.QueryUnescape(line)
		if err != nil {
			return nil, fieldError(chosenField, "%q; expected an id as a form has it", line)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// readFilter reads a filter from a URL or a form. Times are as people write them; without a zone
// they are in the reader's.
func readFilter(r *request) (schedule.Filter, error) {
	f := schedule.Filter{
		Queue: r.get("queue"), Exchange: r.get("exchange"), Status: schedule.Status(r.get("status")), IDPrefix: r.get("prefix"), UniqueKey: r.form.Get("unique-key"),
		Tag: r.get("tag"), Header: r.get("header"), HeaderValue: r.get("value"), WithoutBody: true,
	}
	var err error
	if f.IDs, err = r.chosen(); err != nil {
		return f, err
	}
	if f.DueFrom, err = r.instant("from"); err != nil {
		return f, err
	}
	if f.DueTo, err = r.instant("to"); err != nil {
		return f, err
	}
	for _, s := range statuses {
		if f.Status == "" || f.Status == s {
			return f, nil
		}
	}
	return f, fieldError("status", "%q; expected one of %v, or none", f.Status, statuses)
}

// required is instant for a field that must not be empty.
func (r *request) required(name string) (time.Time, error) {
	t, err := r.instant(name)
	if err == nil && t.IsZero() {
		err = fieldError(name, "no time; expected one such as tomorrow 08:00 Europe/Berlin or +90m")
	}
	return t, err
}

// instant reads a field; zero if it is empty.
func (r *request) instant(name string) (time.Time, error) {
	s := r.get(name)
	if s == "" {
		return time.Time{}, nil
	}
	t, err := schedule.ParseInstant(s, r.now)
	if err != nil {
		return t, fieldError(name, "%v", err)
	}
	return t, nil
}

// filterValues returns a filter as values of a URL.
func filterValues(f schedule.Filter) url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"queue": f.Queue, "exchange": f.Exchange, "status": string(f.Status), "from": exact(f.DueFrom), "to": exact(f.DueTo),
		"prefix": f.IDPrefix, "unique-key": f.UniqueKey, "tag": f.Tag, "header": f.Header, "value": f.HeaderValue, "sort": string(f.Sort),
		chosenField: escaped(f.IDs),
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// escaped writes ids as chosen reads them.
func escaped(ids []string) string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = url.QueryEscape(id)
	}
	return strings.Join(list, "\n")
}

// exact returns a time for a URL, such as 2026-12-24T08:00:00Z; empty for none.
func exact(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// condition is one part of a filter, in words.
type condition struct{ Name, Value string }

// conditions returns a filter in words; nothing if it selects all.
func conditions(r *request, f schedule.Filter) []condition {
	var list []condition
	add := func(name, value string) {
		if value != "" {
			list = append(list, condition{name, value})
		}
	}
	add("status is", string(f.Status))
	add("queue is", f.Queue)
	add("exchange is", f.Exchange)
	if !f.DueFrom.IsZero() {
		add("due from", r.stamp(f.DueFrom).Text)
	}
	if !f.DueTo.IsZero() {
		add("due before", r.stamp(f.DueTo).Text)
	}
	add("id begins with", f.IDPrefix)
	add("unique key", f.UniqueKey)
	if n := len(f.IDs); n > 0 {
		add("id is one of "+shown.Number(n), listed(f.IDs))
	}
	add("tag is", f.Tag)
	if f.Header != "" {
		add("header is", f.Header+": "+f.HeaderValue)
	}
	return list
}
