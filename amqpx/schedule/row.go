package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// rowError is that of a row which another program wrote, and which can never be
// sent. What of it can be read has been.
type rowError struct{ reasons []string }

func (e *rowError) Error() string { return strings.Join(e.reasons, "; ") }

// isRowError tells whether only this row cannot be read.
func isRowError(err error) bool {
	var row *rowError
	var headers *headersError
	return errors.As(err, &row) || errors.As(err, &headers)
}

// cell reads a value of whatever type, as SQLite has it in every column, and notes
// one that does not fit.
type cell struct {
	name string
	into any
	row  *rowError
}

// Scan makes a cell an sql.Scanner.
func (c cell) Scan(v any) error {
	switch into := c.into.(type) {
	case *string:
		*into = c.text(v)
	case *Status:
		*into = Status(c.text(v))
	case *sql.NullString:
		if into.Valid = v != nil; into.Valid {
			into.String = c.text(v)
		}
	case *int64:
		*into = c.whole(v)
	case *int:
		*into = int(c.whole(v))
	case *uint8:
		*into = uint8(min(max(c.whole(v), 0), math.MaxUint8))
	case *sql.NullInt64:
		if into.Valid = v != nil; into.Valid {
			into.Int64 = c.whole(v)
		}
	case *[]byte:
		*into = []byte(c.text(v))
	}
	return nil
}

func (c cell) wrong(v any, want string) {
	c.row.reasons = append(c.row.reasons, fmt.Sprintf("column %s: %v, expected %s", c.name, v, want))
}

func (c cell) text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case nil:
		return ""
	}
	return fmt.Sprint(v)
}

// farAway stands for an instant that is none, so that it sorts behind all others.
const farAway = maxDue + 1

func (c cell) whole(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case float64:
		c.wrong(v, "a whole number")
		return int64(math.Ceil(min(max(v, -farAway), farAway)))
	case string, []byte:
		if n, err := strconv.ParseInt(c.text(v), 10, 64); err == nil {
			return n
		}
	}
	c.wrong(fmt.Sprintf("%.100q", c.text(v)), "a whole number")
	return farAway
}

// failTimeless fails pending tasks whose due_at is no instant up to the year 9999.
// No claim comes to them: they are never due, and a text sorts behind all numbers in
// SQLite.
func (s *Store) failTimeless(ctx context.Context) error {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return err
	}
	rows, err := s.db.QueryContext(ctx, d.Bind("SELECT "+columns(false)+" FROM rabbitdelay_tasks WHERE status = 'pending' AND due_at > ? ORDER BY due_at, id LIMIT 500"), int64(maxDue))
	if err != nil {
		return fmt.Errorf("looking for tasks without an instant: %w", sqldb.Explain(err))
	}
	defer func() { _ = rows.Close() }()
	failures := map[*claimed]error{}
	for rows.Next() {
		c := &claimed{}
		c.bad = scanTask(rows.Scan, &c.Task)
		if c.bad != nil && !isRowError(c.bad) {
			return fmt.Errorf("looking for tasks without an instant: %w", c.bad)
		}
		if c.bad == nil {
			c.bad = &rowError{[]string{fmt.Sprintf("column due_at: %d, expected an instant up to the year 9999 in milliseconds", c.DeliverAt.UnixMilli())}}
		}
		failures[c] = c.bad
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	return s.settleFailures(ctx, failures)
}

// checkTexts notes texts that no message can have.
func (e *rowError) checkTexts(t *Task) {
	for _, x := range []struct {
		name string
		text *string
	}{
		{"queue", &t.Queue}, {"exchange", &t.Exchange}, {"routing_key", &t.RoutingKey}, {"content_type", &t.ContentType},
		{"type", &t.Type}, {"correlation_id", &t.CorrelationID}, {"last_error", &t.LastError},
	} {
		if !isText(*x.text) {
			cell{name: x.name, row: e}.wrong(fmt.Sprintf("%.100q", *x.text), "UTF-8 without NUL")
			*x.text = strings.ToValidUTF8(*x.text, "\uFFFD")
		}
	}
	if err, ok := errors.AsType[*TaskError](checkID(t.ID)); ok {
		e.reasons = append(e.reasons, "column id: "+err.Reason)
	}
}
