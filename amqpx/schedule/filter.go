package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Filter chooses tasks. The zero value chooses all; conditions are joined by and.
type Filter struct {
	Queue    string
	Exchange string
	Status   Status
	DueFrom  time.Time // inclusive
	DueTo    time.Time // exclusive
	IDPrefix string
	Tag      string // tasks that have this tag
	// Header and HeaderValue choose tasks that have this header. No index knows
	// it: combine it with others where there are many tasks.
	Header, HeaderValue string

	// The rest concerns List only.
	After Cursor // start after this task, see Task.Cursor
	Limit int    // at most so many; 0 for all
	// WithoutBody leaves Body empty, which saves reading it.
	WithoutBody bool

	timeless bool // of List: rows whose due_at is no instant, by id
}

// where is the WHERE clause, empty for no condition. The status is written out,
// so that the planner can use a partial index.
func (f Filter) where() (string, []any, error) {
	var conditions []string
	var args []any
	add := func(condition string, values ...any) {
		conditions = append(conditions, condition)
		args = append(args, values...)
	}
	if f.Status != "" {
		if !f.Status.valid() {
			return "", nil, fmt.Errorf("status is %q, expected one of %v", f.Status, statuses)
		}
		add("status = '" + string(f.Status) + "'")
	} else if f.Queue != "" || f.Exchange != "" || !f.DueFrom.IsZero() || !f.DueTo.IsZero() {
		// All there are, because the indexes have the status before the instant.
		quoted := make([]string, len(statuses))
		for i, status := range statuses {
			quoted[i] = "'" + string(status) + "'"
		}
		add("status IN (" + strings.Join(quoted, ", ") + ")")
	}
	if f.Queue != "" {
		add("queue = ? AND exchange = ''", f.Queue) // as the index has it
	}
	if f.Exchange != "" {
		add("exchange = ? AND queue = ''", f.Exchange)
	}
	if f.Tag != "" {
		add("id IN (SELECT task_id FROM rabbitdelay_task_tags WHERE tag = ?)", f.Tag)
	}
	if f.Header != "" {
		condition, values, err := whereHeader(f.Header, f.HeaderValue)
		if err != nil {
			return "", nil, err
		}
		add(condition, values...)
	}
	if !f.DueFrom.IsZero() {
		add("due_at >= ?", stored(f.DueFrom))
	}
	if !f.DueTo.IsZero() {
		add("due_at < ?", stored(f.DueTo))
	}
	if f.IDPrefix != "" {
		// A range, which every index of a binary collation can answer; no valid
		// id sorts after the last code point.
		add("id >= ?", f.IDPrefix)
		add("id < ?", f.IDPrefix+"\U0010FFFF")
	}
	if len(conditions) == 0 {
		return "", nil, nil
	}
	return " WHERE " + strings.Join(conditions, " AND "), args, nil
}

// Cursor is a place in the order of List.
type Cursor struct {
	DeliverAt time.Time
	ID        string
}

// String is the cursor as text, which ParseCursor reads.
func (c Cursor) String() string {
	if c.ID == "" {
		return ""
	}
	return strconv.FormatInt(stored(c.DeliverAt), 10) + "/" + c.ID
}

// ParseCursor reads a cursor that String wrote.
func ParseCursor(s string) (Cursor, error) {
	due, id, ok := strings.Cut(s, "/")
	ms, err := strconv.ParseInt(due, 10, 64)
	if !ok || err != nil || checkID(id) != nil {
		return Cursor{}, fmt.Errorf("%q is no cursor; expected one that was printed before, such as 1767225600000/order-42", s)
	}
	return Cursor{DeliverAt: time.UnixMilli(ms), ID: id}, nil
}

// beyond is the condition for what comes after a place in the order of List,
// written so that an index leads to it also when many tasks are due at one
// instant.
func beyond(d Dialect, c Cursor) (string, []any) {
	at := stored(c.DeliverAt)
	if d == MySQL {
		return "due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?))", []any{at, at, at, c.ID}
	}
	return "(due_at, id) > (?, ?)", []any{at, c.ID}
}
