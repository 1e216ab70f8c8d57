package term

import (
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// Table aligns the cells of its rows in columns. It writes on Flush, which returns what went wrong. Its
// methods do not quote what others wrote, unless they say so.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a table that is written to w.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Table returns a table on standard output.
func (t *Terminal) Table() *Table { return NewTable(t.Stdout) }

// Row adds a row. Empty cells at its end are left out.
func (t *Table) Row(cells ...string) {
	_, _ = fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// Field adds a row of a name and a quoted value, unless that is empty.
func (t *Table) Field(name, value string) {
	if value != "" {
		t.Row(name, shown.Line(value))
	}
}

// When adds a row of a name and an instant, with its distance from now, unless it is zero.
func (t *Table) When(name string, at, now time.Time) {
	if !at.IsZero() {
		t.Row(name, When(at, now))
	}
}

// Linef adds a line of text, which ends the columns before it.
func (t *Table) Linef(format string, args ...any) {
	_ = t.w.Flush() // the next one has the error
	_, _ = fmt.Fprintf(t.w, format+"\n", args...)
	_ = t.w.Flush()
}

// Flush writes the rows, and ends the columns.
func (t *Table) Flush() error { return t.w.Flush() }

// Show prints one result: as an object with --json, else as text in the format.
func (t *Terminal) Show(object any, format string, args ...any) error {
	if t.JSON {
		return t.PrintJSON(object)
	}
	_, err := fmt.Fprintf(t.Stdout, format, args...)
	return err
}

// List prints items, and returns their number: each as a row of cells below head,
// or with --json as an object.
func List[T any](t *Terminal, head []string, items iter.Seq2[T, error], line func(T) (object any, cells []string)) (n int, err error) {
	table := t.Table()
	for item, err := range items {
		if err != nil {
			return n, err
		}
		n++
		object, cells := line(item)
		if t.JSON {
			if err := t.PrintJSON(object); err != nil {
				return n, err
			}
			continue
		}
		if n == 1 && head != nil {
			table.Row(head...)
		}
		table.Row(cells...)
		if n%1000 == 0 { // what is shown first need not wait for a million
			if err := table.Flush(); err != nil {
				return n, err
			}
		}
	}
	return n, table.Flush()
}

// Each yields the items of a slice, for List.
func Each[T any](items []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// When returns an instant and its distance from now.
func When(at, now time.Time) string {
	return shown.Instant(at) + " (" + shown.FromNow(at, now) + ")"
}

// ShortError returns as much of an error as a table has room for.
func ShortError(s string) string { return shown.Line(shown.Shorten(s, 60)) }
