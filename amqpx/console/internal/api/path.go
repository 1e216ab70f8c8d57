package api

import "github.com/danielgtaylor/huma/v2"

// Ids and names are in paths, which cannot hold all of them: the router takes a segment of %2F
// for the end of the path, clients resolve . and .., and proxies change escapes. So each may be
// in the query instead, with elsewhere in its place in the path.
const elsewhere = "-"

// TaskPath is the id of the task or message of a request.
type TaskPath struct {
	ID      string `path:"id"  minLength:"1"   maxLength:"255"                                                                                                doc:"the id, percent-encoded; - if it is in the query"`
	QueryID string `query:"id" maxLength:"255" doc:"the id, with - in its place in the path: a path cannot hold /, . and .., and some proxies change escapes"`
}

// Resolve reads the id from path or query.
func (p *TaskPath) Resolve(huma.Context) []error { return resolve(&p.ID, p.QueryID, "id") }

// RecurringPath is the name of the recurring task of a request.
type RecurringPath struct {
	Name      string `path:"name"  minLength:"1"   maxLength:"200"                                                                                                  doc:"the name, percent-encoded; - if it is in the query"`
	QueryName string `query:"name" maxLength:"200" doc:"the name, with - in its place in the path: a path cannot hold /, . and .., and some proxies change escapes"`
}

// Resolve reads the name from path or query.
func (p *RecurringPath) Resolve(huma.Context) []error { return resolve(&p.Name, p.QueryName, "name") }

// QueuePath is the queue of a request.
type QueuePath struct {
	Queue      string `path:"queue"  minLength:"1"   maxLength:"255"                                                                                                   doc:"the queue, percent-encoded; - if it is in the query"`
	QueryQueue string `query:"queue" maxLength:"255" doc:"the queue, with - in its place in the path: a path cannot hold /, . and .., and some proxies change escapes"`
}

// Resolve reads the queue from path or query.
func (p *QueuePath) Resolve(huma.Context) []error { return resolve(&p.Queue, p.QueryQueue, "queue") }

func resolve(path *string, query, name string) []error {
	switch {
	case query == "" || query == *path:
	case *path == elsewhere:
		*path = query
	default:
		return []error{&huma.ErrorDetail{Location: "query." + name, Message: "the path has a different one; expected - there"}}
	}
	return nil
}
