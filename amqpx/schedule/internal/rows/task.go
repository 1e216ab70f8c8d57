package rows

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Task is a row of rabbitdelay_tasks. Its fields are those of schedule.Task, which
// documents them.
type Task struct {
	ID, Queue, Exchange, RoutingKey  string
	DeliverAt                        time.Time
	Body                             []byte
	ContentType, Type, CorrelationID string
	Priority                         uint8
	ExpiresAfter                     time.Duration
	UniqueKey                        string
	Headers                          map[string]string
	Tags                             []string

	Version                                  int64
	Status                                   string
	Attempts                                 int
	LastError                                string
	Sends                                    int
	SentAt, CreatedAt, UpdatedAt, FinishedAt time.Time

	NotBefore time.Time // when a claimed task of a limited lane may be delivered

	Failures int   // sends that failed since the last confirmed one
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

// Statuses lists them in the order of a task's life.
var Statuses = []string{Pending, Running, Done, Cancelled, Expired, Failed}

// taskColumns has the columns of a Task in the order of scanTask.
const taskColumns = "id, queue, exchange, routing_key, due_at, version, status, body, content_type, type, correlation_id, priority, expires_after, unique_key, headers, created_at, updated_at, finished_at, attempts, last_error, sent_at, sends, send_failures"

// bodiless are the columns without the body.
var bodiless = strings.Replace(taskColumns, " body,", " NULL,", 1)

// scanTask reads a row of taskColumns. If Bad is set, so that the task can never be sent, the readable columns are
// set anyway.
func scanTask(scan scanner) (*Task, error) {
	t := &Task{}
	var due, created, updated int64
	var finished, sent, expires sql.NullInt64
	var key, headers, lastError sql.NullString
	dest := []any{&t.ID, &t.Queue, &t.Exchange, &t.RoutingKey, &due, &t.Version, &t.Status, &t.Body, &t.ContentType,
		&t.Type, &t.CorrelationID, &t.Priority, &expires, &key, &headers, &created, &updated, &finished, &t.Attempts, &lastError, &sent, &t.Sends, &t.Failures}
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
	t.FinishedAt, t.SentAt = orZero(finished), orZero(sent)
	t.ExpiresAfter = expiresAfterOf(expires)
	t.UniqueKey, t.LastError = key.String, lastError.String
	if headers.String != "" {
		if err := json.Unmarshal([]byte(headers.String), &t.Headers); err != nil {
			wrong.reasons = append(wrong.reasons, badHeaders(err))
		}
	}
	if wrong.checkTexts(t); len(wrong.reasons) > 0 {
		t.Bad = wrong
	}
	return t, nil
}

func badHeaders(err error) string {
	return "column headers: expected a JSON object of strings: " + err.Error()
}

// asJSON is the column of a map or list, NULL if that is empty.
func asJSON[T map[string]string | []string](v T) any {
	if len(v) == 0 {
		return nil
	}
	text, _ := json.Marshal(v) //nolint:errchkjson // strings do not fail
	return string(text)
}

// blob is the column of a body, which is not NULL.
func blob(body []byte) []byte {
	if body == nil {
		return []byte{}
	}
	return body
}

// CheckID returns the problem of an invalid task id or unique key, "" for a valid one.
func CheckID(id string) string {
	switch {
	case id == "":
		return "is empty"
	case len(id) > MaxName:
		return fmt.Sprintf("%d bytes, expected at most %d", len(id), MaxName)
	case !IsText(id):
		return "expected UTF-8 without NUL"
	case strings.HasSuffix(id, " "):
		// MySQL would find it equal to the id without the space.
		return "ends in a space, which some databases ignore"
	}
	return ""
}

// MaxName is AMQP's limit of a message id, a routing key and a name, in bytes.
const MaxName = 255

// IsRowError reports whether only this row cannot be read.
func IsRowError(err error) bool {
	_, ok := errors.AsType[*RowError](err)
	return ok
}
