package rows

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

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

// scanTask reads a row of taskColumns. If Bad is set, the task can never be sent, but the fields for readable columns
// are still set.
func scanTask(scan scanner) (*Task, error) {
	t, wrong := &Task{}, &RowError{}
	dest := t.cells(columns)
	if err := scan(dest...); err != nil {
		for i, c := range columns {
			dest[i] = cell{c.name, dest[i], wrong}
		}
		if scan(dest...) != nil {
			return nil, err
		}
	}
	if text := t.headers.String; text != "" {
		var err error
		if t.Headers, err = headersIn(text); err != nil {
			wrong.reasons = append(wrong.reasons, badHeaders(err))
		}
	}
	t.headers = sql.NullString{}
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
