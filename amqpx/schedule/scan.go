package schedule

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// taskColumns are those of a Task, in the order of scanTask.
const taskColumns = "id, queue, exchange, routing_key, due_at, version, status, %s, content_type, type, correlation_id, priority, expires_after, headers, created_at, updated_at, finished_at, attempts, last_error, sent_at, sends"

func columns(withBody bool) string {
	if withBody {
		return fmt.Sprintf(taskColumns, "body")
	}
	return fmt.Sprintf(taskColumns, "NULL")
}

// scanTask reads a row of taskColumns, and further columns into extra.
func scanTask(scan func(...any) error, t *Task, extra ...any) error {
	var due, created, updated int64
	var finished, sent, expires sql.NullInt64
	var headers, lastError sql.NullString
	dest := []any{&t.ID, &t.Queue, &t.Exchange, &t.RoutingKey, &due, &t.Version, &t.Status, &t.Body, &t.ContentType,
		&t.Type, &t.CorrelationID, &t.Priority, &expires, &headers, &created, &updated, &finished, &t.Attempts, &lastError, &sent, &t.Sends}
	dest = append(dest, extra...)
	row := &rowError{}
	if err := scan(dest...); err != nil {
		names := strings.Split(columns(true)+", send_failures", ", ")
		for i := range dest {
			dest[i] = cell{names[i], dest[i], row}
		}
		if scan(dest...) != nil {
			return err
		}
	}
	t.DeliverAt, t.CreatedAt, t.UpdatedAt = time.UnixMilli(due), time.UnixMilli(created), time.UnixMilli(updated)
	if finished.Valid {
		t.FinishedAt = time.UnixMilli(finished.Int64)
	}
	if sent.Valid {
		t.SentAt = time.UnixMilli(sent.Int64)
	}
	t.ExpiresAfter = expiresAfterOf(expires)
	t.LastError = lastError.String
	if headers.String != "" {
		if err := json.Unmarshal([]byte(headers.String), &t.Headers); err != nil {
			return &headersError{err}
		}
	}
	if row.checkTexts(t); len(row.reasons) > 0 {
		return row
	}
	return nil
}

// headersError is that of a row which another program wrote. The other columns
// have been read.
type headersError struct{ err error }

func (e *headersError) Error() string {
	return "column headers: expected a JSON object of strings: " + e.err.Error()
}
func (e *headersError) Unwrap() error { return e.err }
