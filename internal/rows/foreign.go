package rows

import (
	"database/sql"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// RowError reports why a row that another program wrote can never be sent.
type RowError struct{ reasons []string }

func (e *RowError) Error() string { return strings.Join(e.reasons, "; ") }

// cell scans a value of any type, because a column in SQLite can contain values of any type. If the value has the wrong
// type, it records a problem.
type cell struct {
	column string
	into   any
	row    *RowError
}

// Scan implements sql.Scanner.
func (c cell) Scan(v any) error {
	switch into := c.into.(type) {
	case *string:
		*into = c.text(v)
	case optional:
		into.set(c.optional(v))
	case headers:
		into.set(c.optional(v))
	case *int64:
		*into = c.whole(v)
	case *int:
		*into = int(c.whole(v))
	case *uint8:
		*into = uint8(min(max(c.whole(v), 0), math.MaxUint8))
	case instant:
		into.set(c.number(v))
	case lifetime:
		into.set(c.number(v))
	case *[]byte:
		*into = []byte(c.text(v))
	default:
		return fmt.Errorf("column %s: no value of the type %T can be read", c.column, into)
	}
	return nil
}

func (e *RowError) add(column string, v any, want string) {
	e.reasons = append(e.reasons, fmt.Sprintf("column %s: %v, expected %s", column, v, want))
}

func (c cell) optional(v any) sql.NullString {
	if v == nil {
		return sql.NullString{}
	}
	return sql.NullString{String: c.text(v), Valid: true}
}

func (c cell) number(v any) sql.NullInt64 {
	if v == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: c.whole(v), Valid: true}
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

func (c cell) whole(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case float64:
		c.row.add(c.column, v, "a whole number")
		return int64(math.Ceil(min(max(v, -farAway), farAway)))
	case string, []byte:
		if n, err := strconv.ParseInt(c.text(v), 10, 64); err == nil {
			return n
		}
	}
	c.row.add(c.column, fmt.Sprintf("%.100q", c.text(v)), "a whole number")
	return farAway
}

// checkTexts records a problem for every string that a message cannot contain, and replaces invalid UTF-8 in it.
func (e *RowError) checkTexts(t *Task) {
	for _, c := range columns {
		if c.text == "" {
			continue
		}
		if text := textIn(c.cell(t)); !IsText(*text) {
			e.add(c.name, fmt.Sprintf("%.100q", *text), "UTF-8 without NUL")
			*text = strings.ToValidUTF8(*text, "\uFFFD")
		}
	}
	if reason := CheckID(t.ID); reason != "" {
		e.reasons = append(e.reasons, "column id: "+reason)
	}
}

// IsText reports whether every database accepts s as text, which means that it is UTF-8 without NUL.
func IsText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// maxErrorText is the maximum length of last_error in bytes.
const maxErrorText = 1024

// ErrorText returns the text of an error in a form that can be stored in last_error: shortened to maxErrorText, and
// without characters that a database rejects.
func ErrorText(err error) string {
	s := []rune(err.Error()) // invalid UTF-8 becomes the replacement character
	out := make([]byte, 0, min(len(s), maxErrorText))
	for _, r := range s {
		if r == 0 {
			continue
		}
		if len(out)+len(string(r)) > maxErrorText {
			break
		}
		out = append(out, string(r)...)
	}
	return string(out)
}
