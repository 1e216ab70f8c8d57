package api

import (
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// reader parses the strings in a request, and keeps the first error.
type reader struct{ err error }

func (r *reader) fail(location, message string) {
	if r.err == nil {
		r.err = wrong(location, message)
	}
}

// at returns an asjson.Reader for the fields of the object at a location in the request.
func (r *reader) at(location string) asjson.Reader { return fields{r, location} }

// fields parses the fields of the object at a location in a request.
type fields struct {
	*reader

	location string
}

// Duration implements asjson.Reader.
func (f fields) Duration(field, text string) time.Duration {
	return f.duration(f.location+"."+field, text)
}

// Fail implements asjson.Reader.
func (f fields) Fail(field, problem string) { f.fail(f.location+"."+field, problem) }

// instant parses a time as schedule.ParseInstant does. An empty string is the zero time.
func (r *reader) instant(location, s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	at, err := schedule.ParseInstant(s, time.Now())
	if err == nil {
		return at
	}
	r.fail(location, quoted(s)+" is not a time; expected one such as 2026-12-24T08:00:00Z, \"tomorrow 08:00 Europe/Berlin\", now, or a duration from now such as 90m or -7d")
	return at
}

// shift parses a duration with an optional sign.
func (r *reader) shift(location, s string) time.Duration {
	d, ok := signed(s)
	if !ok {
		r.fail(location, quoted(s)+" is not a duration; expected one such as 90s, 2h or -1d")
	}
	return d
}

func signed(s string) (time.Duration, bool) {
	digits := strings.TrimLeft(s, "+-")
	d, err := topology.ParseDuration(digits)
	if strings.HasPrefix(s, "-") {
		d = -d
	}
	return d, err == nil && len(s)-len(digits) <= 1
}

// duration parses a duration. An empty string is 0.
func (r *reader) duration(location, s string) time.Duration {
	if s == "" {
		return 0
	}
	d, err := topology.ParseDuration(s)
	if err != nil {
		r.fail(location, err.Error())
	}
	return d
}

// maxQuoted is the number of bytes of a wrong value that an error repeats.
const maxQuoted = 60

func quoted(s string) string { return "\"" + shortened(s, maxQuoted) + "\"" }

// shortened cuts s to the given number of bytes, and adds an ellipsis if s is longer.
func shortened(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// elsewhere is the path segment that replaces an id or a name if the value is in the query instead. Not every value can
// be in a path: the router treats the segment %2F as the end of the path, clients resolve . and .., and proxies change
// escapes.
const elsewhere = "-"

// TaskPath is the id of the task or message in a request.
type TaskPath struct {
	ID      string `path:"id"  minLength:"1"   maxLength:"255"                                                                                                                                            doc:"The id, percent-encoded, or - if the id is given in the query."`
	QueryID string `query:"id" maxLength:"255" doc:"The id, if the path has - instead. Use it for ids such as /, . and .., which a path cannot contain, and behind proxies that change percent-encoding."`
}

// Resolve reads the id from the path or the query.
func (p *TaskPath) Resolve(huma.Context) []error { return resolve(&p.ID, p.QueryID, "id") }

// RecurringPath is the name of the recurring task in a request.
type RecurringPath struct {
	Name      string `path:"name"  minLength:"1"   maxLength:"200"                                                                                                                                                doc:"The name, percent-encoded, or - if the name is given in the query."`
	QueryName string `query:"name" maxLength:"200" doc:"The name, if the path has - instead. Use it for names such as /, . and .., which a path cannot contain, and behind proxies that change percent-encoding."`
}

// Resolve reads the name from the path or the query.
func (p *RecurringPath) Resolve(huma.Context) []error { return resolve(&p.Name, p.QueryName, "name") }

// QueuePath is the queue in a request.
type QueuePath struct {
	Queue      string `path:"queue"  minLength:"1"   maxLength:"255"                                                                                                                                                 doc:"The queue, percent-encoded, or - if the queue is given in the query."`
	QueryQueue string `query:"queue" maxLength:"255" doc:"The queue, if the path has - instead. Use it for names such as /, . and .., which a path cannot contain, and behind proxies that change percent-encoding."`
}

// Resolve reads the queue from the path or the query.
func (p *QueuePath) Resolve(huma.Context) []error { return resolve(&p.Queue, p.QueryQueue, "queue") }

func resolve(path *string, query, name string) []error {
	switch {
	case query == "" || query == *path:
	case *path == elsewhere:
		*path = query
	default:
		return []error{&huma.ErrorDetail{Location: "query." + name, Message: "the path has a different value; expected - in the path"}}
	}
	return nil
}
