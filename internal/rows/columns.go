package rows

import (
	"database/sql"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Content contains the fields of a task that the caller of Schedule sets. They are the fields of schedule.Task in the
// same order, so that one type can be converted to the other.
type Content struct {
	ID            string
	Queue         string
	Exchange      string
	RoutingKey    string
	DeliverAt     time.Time
	Body          []byte
	ContentType   string
	Type          string
	CorrelationID string
	Priority      uint8
	ExpiresAfter  time.Duration
	UniqueKey     string
	Replace       bool
	Headers       map[string]string
	Tags          []string
}

// Task is a row in rabbitdelay_tasks. schedule.Task documents its fields.
type Task struct {
	Content

	Version                                  int64
	Status                                   string
	Attempts                                 int
	LastError                                string
	Sends                                    int
	SentAt, CreatedAt, UpdatedAt, FinishedAt time.Time
	ResendAt                                 time.Time

	Lease     int64     // claimed_until of the claim that returned the task; 0 for a task that was not claimed
	NotBefore time.Time // when a claimed task of a limited lane may be delivered

	Failures int   // failed sends since the last confirmed one
	Bad      error // a *RowError if another program wrote a row that cannot be sent

	headers sql.NullString // the column headers until it is decoded
}

// column is a column of rabbitdelay_tasks for which Task has a field. The statements that read, insert, replace and
// renew tasks, and those for the tasks of rabbitdelay_schedules, are built from the list of columns. A new field of a
// task therefore needs the field itself, an entry in the list, and the column in each dialect's migrations.
type column struct {
	name string
	// cell returns the place where a task keeps the column's value: a pointer to a string, number or body, or one of the
	// types below. Reading a row scans the value into the cell, and writing a row takes the value from it.
	cell func(t *Task) any
	// by says who decides the value; see setter.
	by setter
	// text is the name of the Go field if the column is a string that has to be UTF-8 without NUL.
	text string
	// renewed is the SQL value to which the column is set when the task's version is raised; empty if the column keeps
	// its value.
	renewed string
}

// setter says who decides the value of a column, which determines the statements that write it.
type setter int

const (
	byRelay   setter = iota // rabbitdelay itself
	byCaller                // the caller of Schedule
	byMessage               // the caller of Schedule, or a schedule, which has a column of the same name and passes its value on to its tasks
)

// columns lists the columns of a Task in the order in which they are read.
var columns = []column{
	{name: "id", by: byCaller, cell: func(t *Task) any { return &t.ID }},
	{name: "queue", by: byMessage, text: "Queue", cell: func(t *Task) any { return &t.Queue }},
	{name: "exchange", by: byMessage, text: "Exchange", cell: func(t *Task) any { return &t.Exchange }},
	{name: "routing_key", by: byMessage, text: "RoutingKey", cell: func(t *Task) any { return &t.RoutingKey }},
	{name: "due_at", by: byCaller, cell: func(t *Task) any { return instant{&t.DeliverAt} }},
	{name: "version", cell: func(t *Task) any { return &t.Version }},
	{name: "status", renewed: "'pending'", cell: func(t *Task) any { return &t.Status }},
	{name: "body", by: byMessage, cell: func(t *Task) any { return &t.Body }},
	{name: "content_type", by: byMessage, text: "ContentType", cell: func(t *Task) any { return &t.ContentType }},
	{name: "type", by: byMessage, text: "Type", cell: func(t *Task) any { return &t.Type }},
	{name: "correlation_id", by: byMessage, text: "CorrelationID", cell: func(t *Task) any { return &t.CorrelationID }},
	{name: "priority", by: byMessage, cell: func(t *Task) any { return &t.Priority }},
	{name: "expires_after", by: byMessage, cell: func(t *Task) any { return lifetime{&t.ExpiresAfter} }},
	{name: "unique_key", by: byCaller, cell: func(t *Task) any { return optional{&t.UniqueKey} }},
	{name: "headers", by: byMessage, cell: func(t *Task) any { return headers{t} }},
	{name: "created_at", cell: func(t *Task) any { return instant{&t.CreatedAt} }},
	{name: "updated_at", cell: func(t *Task) any { return instant{&t.UpdatedAt} }},
	{name: "finished_at", renewed: "NULL", cell: func(t *Task) any { return instant{&t.FinishedAt} }},
	{name: "attempts", renewed: "0", cell: func(t *Task) any { return &t.Attempts }},
	{name: "last_error", renewed: "NULL", text: "LastError", cell: func(t *Task) any { return optional{&t.LastError} }},
	{name: "sent_at", renewed: "NULL", cell: func(t *Task) any { return instant{&t.SentAt} }},
	{name: "sends", renewed: "0", cell: func(t *Task) any { return &t.Sends }},
	{name: "send_failures", renewed: "0", cell: func(t *Task) any { return &t.Failures }},
	{name: "resend_at", renewed: "NULL", cell: func(t *Task) any { return instant{&t.ResendAt} }},
}

// Parts of statements, built from columns.
var (
	taskColumns = namesOf(columns)
	// bodiless is taskColumns with NULL in place of the body.
	bodiless = strings.Replace(taskColumns, " body,", " NULL,", 1)
	// given lists the columns that the caller of Schedule sets. written contains the names of the columns that Insert
	// writes, in the order of the method written.
	given   = columnsBy(byCaller, byMessage)
	written = append(names(given), "created_at", "updated_at")
	// message lists the columns that a schedule passes on to its tasks.
	message = columnsBy(byMessage)
	// renewed resets the columns of a row whose version was raised, so that the relay sends it again.
	renewed = renewal()
)

func columnsBy(setters ...setter) (list []column) {
	for _, c := range columns {
		if slices.Contains(setters, c.by) {
			list = append(list, c)
		}
	}
	return list
}

func names(list []column) []string {
	all := make([]string, len(list))
	for i, c := range list {
		all[i] = c.name
	}
	return all
}

func namesOf(list []column) string { return strings.Join(names(list), ", ") }

func renewal() string {
	var set []string
	for _, c := range columns {
		if c.renewed != "" {
			set = append(set, c.name+" = "+c.renewed)
		}
	}
	return strings.Join(append(set, "claimed_until = 0"), ", ")
}

// cells returns the cells of a task for some columns.
func (t *Task) cells(list []column) []any {
	all := make([]any, len(list))
	for i, c := range list {
		all[i] = c.cell(t)
	}
	return all
}

// values returns what a statement writes to the given columns, in their order.
func (t *Task) values(list []column) []any {
	all := t.cells(list)
	for i, cell := range all {
		all[i] = value(cell)
	}
	return all
}

// written returns the values of the columns that Insert writes.
func (t *Task) written(now int64) []any {
	return append(t.values(given), now, now)
}

// value returns the value that is written to a cell's column.
func value(cell any) any {
	switch cell := cell.(type) {
	case *string:
		return *cell
	case *[]byte:
		return blob(*cell)
	case *uint8:
		return *cell
	case instant:
		return Millis(*cell.Time)
	case lifetime:
		return expiresAfter(*cell.Duration)
	case optional:
		return sql.NullString{String: *cell.string, Valid: *cell.string != ""}
	case headers:
		return asJSON(cell.Headers)
	}
	panic("rows: callers do not set this column")
}

// SameMessage reports whether two tasks have the same destination, message and tags, as the tables store them.
func SameMessage(a, b *Task) bool {
	return reflect.DeepEqual(a.values(message), b.values(message)) && slices.Equal(a.Tags, b.Tags)
}

// Text is one of the strings of a task's message or destination, with the name of its Go field.
type Text struct{ Field, Value string }

// Texts returns the strings of the message and its destination that the caller sets.
func (t *Task) Texts() (list []Text) {
	for _, c := range message {
		if c.text != "" {
			list = append(list, Text{c.text, *textIn(c.cell(t))})
		}
	}
	return list
}

// textIn returns the string in a cell, or nil if the cell contains a value of another type.
func textIn(cell any) *string {
	if o, ok := cell.(optional); ok {
		return o.string
	}
	text, _ := cell.(*string)
	return text
}

// instant is a time that is stored in milliseconds. NULL is the zero time.
type instant struct{ *time.Time }

// Scan implements sql.Scanner.
func (x instant) Scan(v any) error { return scanNumber(v, x.set) }

func (x instant) set(ms sql.NullInt64) { *x.Time = orZero(ms) }

// lifetime is a duration that is stored in milliseconds. NULL is 0.
type lifetime struct{ *time.Duration }

// Scan implements sql.Scanner.
func (x lifetime) Scan(v any) error { return scanNumber(v, x.set) }

func (x lifetime) set(ms sql.NullInt64) { *x.Duration = expiresAfterOf(ms) }

// optional is a string that is stored as NULL if it is empty.
type optional struct{ *string }

// Scan implements sql.Scanner.
func (x optional) Scan(v any) error { return scanText(v, x.set) }

func (x optional) set(text sql.NullString) { *x.string = text.String }

// headers scans the column headers, which is a JSON object, or NULL if there are none. It keeps the raw text, which is
// decoded after the row has been read, because the rules for tasks and schedules differ.
type headers struct{ *Task }

// Scan implements sql.Scanner.
func (x headers) Scan(v any) error { return scanText(v, x.set) }

func (x headers) set(text sql.NullString) { x.headers = text }

func scanNumber(v any, set func(sql.NullInt64)) error {
	var n sql.NullInt64
	if err := n.Scan(v); err != nil {
		return err
	}
	set(n)
	return nil
}

func scanText(v any, set func(sql.NullString)) error {
	var s sql.NullString
	if err := s.Scan(v); err != nil {
		return err
	}
	set(s)
	return nil
}
