package rows

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
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

// Task is a row of rabbitdelay_tasks. schedule.Task documents its fields.
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
}

// The statuses of a task.
const (
	Pending   = "pending"
	Running   = "running"
	Done      = "done"
	Cancelled = "cancelled"
	Expired   = "expired"
	Failed    = "failed"
)

// Statuses lists all statuses in the order of a task's life.
var Statuses = []string{Pending, Running, Done, Cancelled, Expired, Failed}

// taskColumns lists the columns of a Task in the order that scanTask expects.
const taskColumns = "id, queue, exchange, routing_key, due_at, version, status, body, content_type, type, correlation_id, priority, expires_after, unique_key, headers, created_at, updated_at, finished_at, attempts, last_error, sent_at, sends, send_failures, resend_at"

// bodiless is taskColumns with NULL in place of the body.
var bodiless = strings.Replace(taskColumns, " body,", " NULL,", 1)

// scanTask reads a row of taskColumns. If Bad is set, the task can never be sent, but the fields for readable columns
// are still set.
func scanTask(scan scanner) (*Task, error) {
	t := &Task{}
	var due, created, updated int64
	var finished, sent, expires, resend sql.NullInt64
	var key, headers, lastError sql.NullString
	dest := []any{&t.ID, &t.Queue, &t.Exchange, &t.RoutingKey, &due, &t.Version, &t.Status, &t.Body, &t.ContentType,
		&t.Type, &t.CorrelationID, &t.Priority, &expires, &key, &headers, &created, &updated, &finished, &t.Attempts, &lastError, &sent, &t.Sends, &t.Failures, &resend}
	wrong := &RowError{}
	if err := scan(dest...); err != nil {
		for i, name := range strings.Split(taskColumns, ", ") {
			dest[i] = cell{name, dest[i], wrong}
		}
		if scan(dest...) != nil {
			return nil, err
		}
	}
	t.DeliverAt, t.CreatedAt, t.UpdatedAt = time.UnixMilli(due), time.UnixMilli(created), time.UnixMilli(updated)
	t.FinishedAt, t.SentAt, t.ResendAt = orZero(finished), orZero(sent), orZero(resend)
	t.ExpiresAfter = expiresAfterOf(expires)
	t.UniqueKey, t.LastError = key.String, lastError.String
	if headers.String != "" {
		var err error
		if t.Headers, err = headersIn(headers.String); err != nil {
			wrong.reasons = append(wrong.reasons, badHeaders(err))
		}
	}
	if wrong.checkTexts(t); len(wrong.reasons) > 0 {
		t.Bad = wrong
	}
	return t, nil
}

// headersIn decodes the column headers. encoding/json alone would read a null as an empty string.
func headersIn(column string) (map[string]string, error) {
	var values map[string]*string
	if err := json.Unmarshal([]byte(column), &values); err != nil || values == nil {
		return nil, err
	}
	headers := make(map[string]string, len(values))
	for name, v := range values {
		if v == nil {
			return nil, fmt.Errorf("%.100q is null", name)
		}
		headers[name] = *v
	}
	return headers, nil
}

func badHeaders(err error) string {
	return "column headers: expected a JSON object of strings: " + err.Error()
}

// asJSON returns the column value of a map or list, which is NULL if it is empty.
func asJSON[T map[string]string | []string](v T) any {
	if len(v) == 0 {
		return nil
	}
	text, _ := json.Marshal(v) //nolint:errchkjson // strings do not fail
	return string(text)
}

// blob returns the column value of a body, which is never NULL.
func blob(body []byte) []byte {
	if body == nil {
		return []byte{}
	}
	return body
}

// CheckID returns what is wrong with a task id or unique key, or "" if it is valid.
func CheckID(id string) string {
	switch {
	case id == "":
		return "is empty"
	case len(id) > MaxName:
		return fmt.Sprintf("%d bytes, expected at most %d", len(id), MaxName)
	case !IsText(id):
		return "expected UTF-8 without NUL"
	case strings.HasSuffix(id, " "):
		// MySQL treats the id as equal to the id without the space.
		return "ends in a space, which some databases ignore"
	}
	return ""
}

// MaxName is the maximum length, in bytes, of message ids, routing keys and names in AMQP.
const MaxName = 255

// IsRowError reports whether the error concerns only one row, which cannot be read.
func IsRowError(err error) bool {
	_, ok := errors.AsType[*RowError](err)
	return ok
}
