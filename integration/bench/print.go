package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Format selects the output format of Write.
type Format string

// The supported formats.
const (
	Text     Format = "text"     // for a terminal
	Markdown Format = "markdown" // for docs/performance.md
)

// WriteReport writes the result into a directory, which it creates if necessary. It writes all values to result.json
// and the tables to result.md.
func (r *Result) WriteReport(dir string) error {
	var tables bytes.Buffer
	data, err := json.MarshalIndent(r, "", " ")
	if err := errors.Join(err, r.Write(&tables, Markdown), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "result.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "result.md"), tables.Bytes(), 0o644))
}

// Write writes the result in a readable format: every case with the medians and ranges of its metrics, followed by
// every target.
func (r *Result) Write(w io.Writer, f Format) error {
	fmt.Fprintf(w, "%s, %d cores, %s, %s, %s. = marks baselines; ranges are over the repeats.\n",
		r.Started.Format(time.RFC3339), r.Machine.Cores, r.Machine.OS, r.Machine.Go, r.Sizes)
	missed, total := r.Missed()
	targets := table{{fmt.Sprintf("targets: %d of %d met", total-missed, total), "measured", "wanted", ""}}
	var errs []error
	for _, s := range r.Scenarios {
		fmt.Fprintf(w, "\n%s (%s; %.0f s)\n", s.Name, strings.Join(s.Servers, ", "), s.Seconds)
		for _, t := range s.tables() {
			errs = append(errs, t.write(w, f))
		}
		for _, n := range s.Notes {
			fmt.Fprintf(w, "\n- %s\n", n)
		}
		for _, t := range s.Targets {
			targets = append(targets, t.cells())
		}
	}
	return errors.Join(append(errs, targets.write(w, f))...)
}

// Missed returns how many targets were not met and the total number of targets.
func (r *Result) Missed() (missed, total int) {
	for _, s := range r.Scenarios {
		for _, t := range s.Targets {
			total++
			if !t.Met {
				missed++
			}
		}
	}
	return missed, total
}

func (t Target) cells() []string {
	wanted, verdict := "at least ", "MISSED"
	if t.AtMost {
		wanted = "at most "
	}
	if t.Met {
		verdict = "met"
	}
	return []string{t.Text, ranged(t.Value, t.Low, t.High) + " " + t.Unit, wanted + number(t.Bound), verdict}
}

// table is a table with headings in the first row and names in the first column.
type table [][]string

// tables returns one table for each group, with a column for each metric.
func (s *Scenario) tables() []table {
	var list []table
	for i := 0; i < len(s.Cases); {
		end := i
		for end < len(s.Cases) && s.Cases[end].Group == s.Cases[i].Group {
			end++
		}
		list = append(list, newTable(s.Cases[i:end]))
		i = end
	}
	return list
}

func newTable(group []*Case) table {
	head := []string{group[0].Group}
	var names []string
	for _, c := range group {
		for _, m := range c.Metrics {
			if !slices.Contains(names, m.Name) {
				names, head = append(names, m.Name), append(head, strings.TrimSuffix(m.Name+", "+m.Unit, ", "))
			}
		}
	}
	t := table{head}
	for _, c := range group {
		cells := []string{c.Name}
		if c.Baseline {
			cells[0] = "= " + c.Name
		}
		for _, name := range names {
			cell := ""
			if m := c.Metric(name); m != nil {
				cell = ranged(m.Median, m.Min, m.Max)
			}
			cells = append(cells, cell)
		}
		t = append(t, cells)
	}
	return t
}

// write writes the table, with columns that are aligned with spaces or, in Markdown, separated by bars.
func (t table) write(w io.Writer, f Format) error {
	if len(t) < 2 {
		return nil
	}
	var aligned bytes.Buffer
	tabs := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tabs)
	for i, cells := range t {
		if f == Text {
			fmt.Fprintln(tabs, "  "+strings.Join(cells, "\t"))
			continue
		}
		fmt.Fprintln(tabs, "| "+strings.Join(cells, " | ")+" |")
		if i == 0 {
			fmt.Fprintln(tabs, strings.Repeat("|---", len(cells))+"|")
		}
	}
	err := tabs.Flush()
	for line := range strings.Lines(aligned.String()) {
		_, werr := fmt.Fprintln(w, strings.TrimRight(line, " \n"))
		err = errors.Join(err, werr)
	}
	return err
}

// ranged formats a median with its range.
func ranged(median, lowest, highest float64) string {
	if lowest == highest {
		return number(median)
	}
	return fmt.Sprintf("%s (%s-%s)", number(median), number(lowest), number(highest))
}

// number formats a number with three significant digits, or fewer if the reader does not need them.
func number(v float64) string {
	format := func(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1_000_000 && math.Mod(v, 100_000) == 0:
		return format(v/1_000_000, -1) + "M"
	case a >= 10_000 && math.Mod(v, 1000) == 0:
		return format(v/1000, 0) + "k"
	case a >= 10_000:
		return format(v/1000, 1) + "k"
	case a >= 100:
		return format(v, 0)
	case a >= 10:
		return format(v, 1)
	case a >= 0.1:
		return format(v, 2)
	}
	return format(v, 4)
}

func (s Sizes) String() string {
	return fmt.Sprintf("%d messages of %d bytes a repeat, %d repeats, latency at %d/s, %d pending, %d handlers",
		s.Messages, s.Body, s.Repeats, s.Rate, s.Pending, s.Concurrency)
}
