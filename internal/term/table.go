package term

import (
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// Table aligns the cells of its rows in columns. Rows are written by Flush, which returns the error. Unless their
// documentation says so, the methods do not quote text from other sources.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a table that is written to w.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Table returns a table on standard output.
func (t *Terminal) Table() *Table { return NewTable(t.Stdout) }

// Row adds a row. Empty cells at the end of the row are omitted.
func (t *Table) Row(cells ...string) {
	_, _ = fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// Field adds a row with a name and a quoted value, unless the value is empty.
func (t *Table) Field(name, value string) {
	if value != "" {
		t.Row(name, shown.Line(value))
	}
}

// When adds a row with a name, a time and its distance from now, unless the time is zero.
func (t *Table) When(name string, at, now time.Time) {
	if !at.IsZero() {
		t.Row(name, When(at, now))
	}
}

// Linef adds a line of text. The rows above and below it are aligned separately.
func (t *Table) Linef(format string, args ...any) {
	_ = t.w.Flush() // the next Flush returns the error
	_, _ = fmt.Fprintf(t.w, format+"\n", args...)
	_ = t.w.Flush()
}

// Flush writes the buffered rows. Rows that are added later are aligned separately.
func (t *Table) Flush() error { return t.w.Flush() }

// Show prints one result, with --json as an object and otherwise as formatted text.
func (t *Terminal) Show(object any, format string, args ...any) error {
	if t.JSON {
		return t.PrintJSON(object)
	}
	_, err := fmt.Fprintf(t.Stdout, format, args...)
	return err
}

// List prints items and returns their number. It prints each item as a row of cells below head, or as a JSON object
// with --json.
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
		if n%1000 == 0 { // show the first rows of a long list early
			if err := table.Flush(); err != nil {
				return n, err
			}
		}
	}
	return n, table.Flush()
}

// Each yields the items of a slice, for use with List.
func Each[T any](items []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// When formats a time together with its distance from now.
func When(at, now time.Time) string {
	return shown.Instant(at) + " (" + shown.FromNow(at, now) + ")"
}

// ShortError shortens an error so that it fits into a table column.
func ShortError(s string) string { return shown.Line(shown.Shorten(s, 60)) }
