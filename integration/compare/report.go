package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
	"github.com/rabbitdelay/rabbitdelay/integration/pictures"
)

// Names of metrics.
const (
	metricOne      = "one at a time"
	metricBatch    = "in batches"
	metricEarliest = "earliest"
	metricP50      = "p50"
	metricP95      = "p95"
	metricP99      = "p99"
	metricMax      = "max"
	metricClient   = "client"
	metricBroker   = "broker"
	metricDatabase = "database"
	metricTotal    = "total"
	metricFirst    = "first"
	metricLast     = "last"
	metricRate     = "rate"
	metricLost     = "lost"
	metricEarly    = "early"
	metricTwice    = "twice"
	metricUsed     = "memory in use"
	metricResident = "resident memory"
	metricDisk     = "disk"
	metricTook     = "scheduled within"
	metricExecuted = "statements"
	metricCommits  = "commits"
	metricLogged   = "bytes of WAL"
)

// column is a column of a table. With ratio it shows the metric divided by that of rabbitdelay's messages.
type column struct {
	heading, metric string
	ratio           bool
}

// layouts lists the tables of each workload, with the headings of their first columns.
var layouts = map[string][]struct {
	heading string
	columns []column
}{
	"steady": {
		{"lateness in ms", []column{{"earliest", metricEarliest, false}, {"p50", metricP50, false}, {"p95", metricP95, false}, {"p99", metricP99, false}, {"max", metricMax, false}}},
		{"processor time per task in us", []column{{"client", metricClient, false}, {"RabbitMQ", metricBroker, false}, {"PostgreSQL or Redis", metricDatabase, false}, {"total", metricTotal, false}, {"ratio", metricTotal, true}}},
	},
	"starved": {
		{"processors: lateness in ms", []column{{"p50", metricP50, false}, {"p95", metricP95, false}, {"p99", metricP99, false}, {"max", metricMax, false}}},
		{"processor time per task in us", []column{{"client", metricClient, false}, {"RabbitMQ", metricBroker, false}, {"PostgreSQL or Redis", metricDatabase, false}, {"total", metricTotal, false}}},
	},
	"pools": {
		{"connections: lateness in ms", []column{{"p50", metricP50, false}, {"p95", metricP95, false}, {"p99", metricP99, false}, {"max", metricMax, false}}},
	},
	"instant": {
		{"lateness in ms", []column{{"first", metricFirst, false}, {"p50", metricP50, false}, {"last", metricLast, false}, {"handled per second", metricRate, false}, {"ratio", metricRate, true}}},
	},
	"schedule": {
		{"scheduled per second", []column{{"one at a time", metricOne, false}, {"ratio", metricOne, true}, {"in batches", metricBatch, false}, {"ratio", metricBatch, true}}},
	},
	"statements": {
		{"PostgreSQL, per task", []column{{"statements", metricExecuted, false}, {"commits", metricCommits, false}, {"bytes of WAL", metricLogged, false}}},
	},
	"backlog": {
		{"bytes per waiting task", []column{{"memory in use", metricUsed, false}, {"resident memory", metricResident, false}, {"disk", metricDisk, false}, {"scheduled within, s", metricTook, false}}},
	},
}

// grid is a table with headings in the first row and names in the first column.
type grid [][]string

// tables returns the tables of a workload.
func (r *result) tables() []grid {
	if r.Name == "restart" {
		return []grid{r.outages()}
	}
	var base *bench.Case
	for _, c := range r.Scenario.Cases {
		if c.Name == byMessages {
			base = c
		}
	}
	var all []grid
	for _, l := range layouts[r.Name] {
		head := []string{l.heading}
		for _, col := range l.columns {
			head = append(head, col.heading)
		}
		t := grid{head}
		for _, c := range r.Scenario.Cases {
			cells, empty := []string{c.Name}, true
			for _, col := range l.columns {
				cell := col.cell(c, base)
				empty = empty && cell == ""
				cells = append(cells, cell)
			}
			if !empty {
				t = append(t, cells)
			}
		}
		all = append(all, t)
	}
	return all
}

func (col column) cell(c, base *bench.Case) string {
	m := c.Metric(col.metric)
	if m == nil {
		return ""
	}
	if !col.ratio {
		return ranged(m.Values)
	}
	if base == nil || base.Metric(col.metric) == nil {
		return ""
	}
	var ratios []float64
	for i, v := range base.Metric(col.metric).Values {
		if i < len(m.Values) && v != 0 {
			ratios = append(ratios, m.Values[i]/v)
		}
	}
	return ranged(ratios)
}

// outages returns the table of the workload restart, with a column for each server and way to stop it.
func (r *result) outages() grid {
	head, names := []string{"lost / early / twice"}, []string{}
	for _, c := range r.Scenario.Cases {
		if c.Metric(metricLost) == nil {
			continue
		}
		if !slices.Contains(head, c.Group) {
			head = append(head, c.Group)
		}
		if !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
	}
	t := grid{head}
	for _, c := range contenders() {
		if !slices.Contains(names, c.name) {
			continue
		}
		cells := []string{c.name}
		for _, group := range head[1:] {
			cell := ""
			for _, one := range r.Scenario.Cases {
				if one.Name == c.name && one.Group == group {
					cell = fmt.Sprintf("%s / %s / %s", number(one.Metric(metricLost).Median), number(one.Metric(metricEarly).Median), number(one.Metric(metricTwice).Median))
				}
			}
			cells = append(cells, cell)
		}
		t = append(t, cells)
	}
	return t
}

// ranged formats the median of values with their range.
func ranged(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	median, lowest, highest := number((sorted[(n-1)/2]+sorted[n/2])/2), number(sorted[0]), number(sorted[n-1])
	if lowest == highest {
		return median
	}
	return fmt.Sprintf("%s (%s to %s)", median, lowest, highest)
}

// number formats a number with two or three significant digits.
func number(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 1000:
		unit := math.Pow(10, math.Floor(math.Log10(a))-2)
		s := strconv.FormatFloat(math.Round(v/unit)*unit, 'f', 0, 64)
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case a >= 9.95 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 0.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// write writes the table, aligned for a terminal or as Markdown.
func (t grid) write(w io.Writer, markdown bool) error {
	var aligned bytes.Buffer
	tabs := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	for i, cells := range t {
		if !markdown {
			fmt.Fprintln(tabs, "  "+strings.Join(cells, "\t"))
			continue
		}
		fmt.Fprintln(&aligned, t.row(i))
		if i == 0 {
			fmt.Fprintln(&aligned, strings.Repeat("|---", len(cells))+"|")
		}
	}
	err := tabs.Flush()
	for line := range strings.Lines(aligned.String()) {
		_, werr := fmt.Fprintln(w, strings.TrimRight(line, " \n"))
		err = errors.Join(err, werr)
	}
	return err
}

// row returns a row in Markdown.
func (t grid) row(i int) string {
	var row strings.Builder
	row.WriteString("|")
	for _, cell := range t[i] {
		row.WriteString(strings.TrimRight(" "+cell, " ") + " |")
	}
	return row.String()
}

// report holds all measured results, from any number of runs.
type report []*result

// write writes the tables of all workloads.
func (r report) write(w io.Writer, markdown bool) error {
	var errs []error
	for _, one := range r {
		fmt.Fprintf(w, "\n%s: %s\n%s; %d cores, %s, %s; %s\n\n", one.Name, one.Title, one.Started.Format("2006-01-02 15:04 MST"), one.Machine.Cores, one.Machine.OS, one.Machine.Go, one.versions())
		for i, t := range one.tables() {
			if i > 0 {
				fmt.Fprintln(w)
			}
			errs = append(errs, t.write(w, markdown))
		}
		for _, n := range one.Scenario.Notes {
			fmt.Fprintf(w, "\n- %s\n", n)
		}
	}
	return errors.Join(errs...)
}

// versions lists the servers and the tools.
func (r *result) versions() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		list = append(list, name+" "+r.Versions[name])
	}
	return strings.Join(list, ", ")
}

// tools lists the modules whose versions are reported.
var tools = map[string]string{"github.com/riverqueue/river": "River", "github.com/hibiken/asynq": "asynq", "github.com/jackc/pgx/v5": "pgx"}

func (e *env) allVersions() map[string]string {
	all := map[string]string{}
	for s, version := range e.versions {
		all[string(s)] = version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if name := tools[m.Path]; name != "" {
				all[name] = strings.TrimPrefix(m.Version, "v")
			}
		}
	}
	return all
}

// save writes a result into a folder.
func (r *result) save(dir string) error {
	data, err := json.MarshalIndent(r, "", " ")
	return errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, r.Name+".json"), append(data, '\n'), 0o644))
}

// load reads the latest result of each workload from a folder.
func load(dir string) (report, error) {
	var all report
	for _, name := range names() {
		data, err := os.ReadFile(filepath.Join(dir, name+".json"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		one := &result{}
		if err := errors.Join(err, json.Unmarshal(data, one)); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// figures holds the figures that integration/pictures draws, formatted as in the tables.
type figures struct {
	Recorded  string     `json:"recorded"`
	Versions  string     `json:"versions"`
	Lateness  [][]string `json:"lateness"`
	Processor [][]string `json:"processor"`
	Rates     [][]string `json:"rates"`
}

// publish writes the tables, the plots and their figures into the folder.
func (r report) publish(dir string) error {
	var tables bytes.Buffer
	if err := r.write(&tables, true); err != nil {
		return err
	}
	// The sources are available if the program was started with go run, as in make compare.
	if t, err := jobsTable(); err == nil {
		fmt.Fprintln(&tables)
		if err := t.write(&tables, true); err != nil {
			return err
		}
	}
	var f figures
	for _, one := range r {
		all := one.tables()
		switch one.Name {
		case "steady":
			f.Recorded, f.Versions = one.Started.Format("2006-01-02"), one.versions()
			f.Lateness, f.Processor = all[0][1:], all[1][1:]
		case "schedule":
			f.Rates = all[0][1:]
		}
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	plots, err := pictures.Comparison(data)
	for _, p := range plots {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, p.Name), []byte(p.SVG), 0o644))
	}
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, "compare.md"), tables.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "compare.json"), append(data, '\n'), 0o644))
}
