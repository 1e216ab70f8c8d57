package page

import (
	"net/url"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// statuses in the order of a task's life.
var statuses = []schedule.Status{
	schedule.StatusPending, schedule.StatusRunning, schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed,
}

// filterFields are the names of a filter's parts in a URL.
var filterFields = []string{"queue", "exchange", "status", "from", "to", "prefix", "tag", "header", "value"}

// readFilter reads what a URL or a form says. Instants are as people write them, a
// local time without a zone in the reader's.
func readFilter(r *request) (schedule.Filter, error) {
	f := schedule.Filter{
		Queue: r.get("queue"), Exchange: r.get("exchange"), Status: schedule.Status(r.get("status")), IDPrefix: r.get("prefix"),
		Tag: r.get("tag"), Header: r.get("header"), HeaderValue: r.get("value"), WithoutBody: true,
	}
	var err error
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

// instant is a field's; zero if it is empty.
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

// filterValues are the filter's in a URL.
func filterValues(f schedule.Filter) url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"queue": f.Queue, "exchange": f.Exchange, "status": string(f.Status), "from": exact(f.DueFrom), "to": exact(f.DueTo),
		"prefix": f.IDPrefix, "tag": f.Tag, "header": f.Header, "value": f.HeaderValue,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// exact is an instant in a URL, such as 2026-12-24T08:00:00Z; empty for none.
func exact(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// condition is one part of a filter, in words.
type condition struct{ Name, Value string }

// conditions say what a filter chooses. It is empty if it chooses all.
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
	add("tag is", f.Tag)
	if f.Header != "" {
		add("header is", f.Header+": "+f.HeaderValue)
	}
	return list
}
