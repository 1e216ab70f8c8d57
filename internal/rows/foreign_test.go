package rows

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Invalid rows from other programs are read as far as possible, with the reason why they are invalid.
func TestForeignRows(t *testing.T) {
	for name, x := range map[string]struct {
		column string
		value  any
		reason string // the reason in Bad; empty for a valid row
	}{
		"half a millisecond":         {"due_at", 1.5, "column due_at: 1.5, expected a whole number"},
		"a text for a time":          {"due_at", "soon", `column due_at: "soon", expected a whole number`},
		"bytes for a time":           {"due_at", []byte("soon"), `column due_at: "soon", expected a whole number`},
		"a text for a number":        {"attempts", "many", `column attempts: "many", expected a whole number`},
		"half a version":             {"version", 1.5, "column version: 1.5"},
		"a text in another encoding": {"content_type", "\xff", `column content_type: "\xff", expected UTF-8 without NUL`},
		"a key in another encoding":  {"routing_key", "\xff", `column routing_key: "\xff"`},
		"a NUL":                      {"type", "a\x00b", "column type"},
		"a list for headers":         {"headers", "[]", "column headers: expected a JSON object of strings"},
		"numbers in headers":         {"headers", `{"a":1}`, "column headers"},
		"null in headers":            {"headers", `{"a":null}`, `column headers: expected a JSON object of strings: "a" is null`},
		"a day":                      {"created_at", "today", "column created_at"},
		"a text for NULL":            {"sent_at", "x", "column sent_at"},
		"bytes for a text":           {"last_error", []byte("why"), ""},
		"a large priority":           {"priority", 300, ""},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			table.insert(toQ("a", 0))
			table.unchecked(func() { table.set("a", x.column+" = ?", x.value) })
			got := table.get("a")
			if x.reason == "" && got.Bad == nil {
				return
			}
			if x.reason == "" || got.Bad == nil || !strings.Contains(got.Bad.Error(), x.reason) {
				t.Fatalf(`the row has the reason %v, want one with %q ("" means a valid row)`, got.Bad, x.reason)
			}
			if !IsRowError(got.Bad) {
				t.Errorf("IsRowError(%v) = false, want true", got.Bad)
			}
			check(t, table.FailUnreadable(t.Context(), "a", "because", start))
			if got := table.get("a"); got.Status != Failed || got.LastError != "because" {
				t.Errorf(`the task is %s with the error %q, want %s and "because"`, got.Status, got.LastError, Failed)
			}
		})
	}
}

// FailUnreadable also works for a row whose id is stored as bytes.
func TestForeignID(t *testing.T) {
	x := newTable(t)
	x.unchecked(func() {
		x.must("INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', 1)", []byte("bytes"))
	})
	check(t, x.FailUnreadable(t.Context(), "bytes", "because", start))
	n, err := x.Count(t.Context(), Filter{Status: Failed})
	check(t, err)
	want(t, "failed tasks", n, "1")
}

// Timeless returns the pending rows without a valid due time, which no relay claims, with the reason.
func TestTimeless(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("good", 0), toQ("text", 0), toQ("far", 0), toQ("over", 0))
	x.unchecked(func() {
		x.set("text", "due_at = 'soon'")
		x.set("far", "due_at = ?", int64(MaxDue+1))
		x.set("over", "due_at = 'soon', status = 'done', finished_at = 1")
	})
	list, err := x.Timeless(t.Context())
	check(t, err)
	var got []string
	for _, task := range list {
		got = append(got, task.ID+": "+task.Bad.Error())
	}
	want(t, "timeless", strings.Join(got, "\n"), "far: column due_at: 253402300800000, expected a time up to the year 9999 in milliseconds\n"+
		`text: column due_at: "soon", expected a whole number`)
}

// Cells accept values from any driver.
func TestCells(t *testing.T) {
	var text string
	var key string
	var number int64
	var small uint8
	var count int
	var at time.Time
	var life time.Duration
	var body []byte
	for _, x := range []struct {
		into, value any
		get         func() any
		want        string
	}{
		{&text, []byte("a"), func() any { return text }, "a"},
		{&text, int64(5), func() any { return text }, "5"},
		{&text, nil, func() any { return text }, ""},
		{optional{&key}, "x", func() any { return key }, "x"},
		{optional{&key}, nil, func() any { return key }, ""},
		{&number, "12", func() any { return number }, "12"},
		{&number, []byte("13"), func() any { return number }, "13"},
		{&number, 1e300, func() any { return number }, "253402300800000"},
		{&number, nil, func() any { return number }, "253402300800000"},
		{&small, int64(300), func() any { return small }, "255"},
		{&small, int64(-3), func() any { return small }, "0"},
		{&count, int64(7), func() any { return count }, "7"},
		{instant{&at}, int64(3), func() any { return at.UnixMilli() }, "3"},
		{instant{&at}, nil, func() any { return at.IsZero() }, "true"},
		{lifetime{&life}, []byte("4"), func() any { return life }, "4ms"},
		{lifetime{&life}, nil, func() any { return life }, "0s"},
		{&body, "b", func() any { return string(body) }, "b"},
	} {
		check(t, cell{"c", x.into, &RowError{}}.Scan(x.value))
		want(t, fmt.Sprintf("a cell of type %T with the value %v", x.into, x.value), x.get(), x.want)
	}
}

func TestCheckID(t *testing.T) {
	for id, reason := range map[string]string{
		"a": "", strings.Repeat("x", MaxName): "", " a": "", "a/b ü": "",
		"": "is empty", "a ": "ends in a space", "a\x00": "expected UTF-8 without NUL", "\xff": "expected UTF-8 without NUL",
		strings.Repeat("x", MaxName+1): "256 bytes, expected at most 255",
	} {
		got := CheckID(id)
		if (got == "") != (reason == "") || !strings.Contains(got, reason) {
			t.Errorf(`CheckID(%.20q) = %q, want a text with %q ("" means valid)`, id, got, reason)
		}
	}
}

// The stored text of an error consists of at most 1024 bytes of whole characters, without NUL.
func TestErrorText(t *testing.T) {
	for text, expected := range map[string]string{
		"why":                    "why",
		"a\x00b":                 "ab",
		"\xffx":                  "\uFFFDx",
		strings.Repeat("ü", 600): strings.Repeat("ü", 512),
	} {
		if got := ErrorText(errors.New(text)); got != expected {
			t.Errorf("ErrorText of %.20q = %.40q (%d bytes), want %.40q (%d bytes)", text, got, len(got), expected, len(expected))
		}
	}
}

// An error describes a field in words, as the documentation does, rather than with its Go name.
func TestWords(t *testing.T) {
	for field, words := range map[string]string{
		"ID": "id", "CorrelationID": "correlation id", "DeliverAt": "due time", "MisfireLimit": "misfire limit", "Queue": "queue",
	} {
		if got := Words(field); got != words {
			t.Errorf("Words(%q) = %q, want %q", field, got, words)
		}
	}
	want(t, "an error", (&FieldError{"TimeZone", "is odd"}).Error(), "time zone: is odd")
}

// The expiry of a task is rounded up to whole milliseconds.
func TestForeignExpiry(t *testing.T) {
	x := newTable(t)
	task := toQ("a", 0)
	task.ExpiresAfter = time.Second + 1
	x.insert(task)
	want(t, "expires after", x.get("a").ExpiresAfter, "1.001s")
}
