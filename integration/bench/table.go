package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes the result for people: every case with the medians of its
// metrics and their ranges, then every target.
func (r *Result) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s, %d cores%s, %s, %s\n", r.Started.Format(time.RFC3339), r.Machine.Cores, r.Machine.memory(), r.Machine.OS, r.Machine.Go)
	fmt.Fprintf(w, "%s\n", r.Sizes)
	for _, s := range r.Scenarios {
		fmt.Fprintf(w, "\n%s (%s; %.0f s)\n", s.Name, strings.Join(s.Servers, ", "), s.Seconds)
		if err := s.writeCases(w); err != nil {
			return err
		}
		for _, n := range s.Notes {
			fmt.Fprintf(w, "  note: %s\n", n)
		}
	}
	return r.writeTargets(w)
}

func (s *Scenario) writeCases(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	group := ""
	for _, c := range s.Cases {
		if c.Group != group {
			group = c.Group
			fmt.Fprintf(t, "  %s\n", group)
		}
		mark := " "
		if c.Baseline {
			mark = "="
		}
		fmt.Fprintf(t, "  %s %s", mark, c.Name)
		for _, m := range c.Metrics {
			fmt.Fprintf(t, "\t%s %s", m.Name, m)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func (r *Result) writeTargets(w io.Writer) error {
	missed, total := r.Missed()
	if total == 0 {
		return nil
	}
	fmt.Fprintf(w, "\ntargets: %d of %d met (= marks baselines; ranges over the repeats)\n", total-missed, total)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range r.Scenarios {
		for _, g := range s.Targets {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", g.verdict(), g.Text, g.measured(), g.wanted())
		}
	}
	return t.Flush()
}

func (t Target) verdict() string {
	if t.Met {
		return "met"
	}
	return "MISSED"
}

func (t Target) measured() string {
	s := number(t.Value)
	if t.Low != t.High {
		s += fmt.Sprintf(" (%s-%s)", number(t.Low), number(t.High))
	}
	return s + " " + t.Unit
}

func (t Target) wanted() string {
	if t.AtMost {
		return "at most " + number(t.Bound)
	}
	return "at least " + number(t.Bound)
}

// String is the median with the range and the unit.
func (m *Metric) String() string {
	s := number(m.Median)
	if m.Min != m.Max {
		s += fmt.Sprintf(" (%s-%s)", number(m.Min), number(m.Max))
	}
	if m.Unit == "" || m.Unit == "per message" {
		return s
	}
	return s + " " + m.Unit
}

// number has three significant digits, and no more than the reader needs.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1_000_000 && math.Mod(v, 100_000) == 0:
		return strconv.FormatFloat(v/1_000_000, 'f', -1, 64) + "M"
	case a >= 10_000 && math.Mod(v, 1000) == 0:
		return strconv.FormatFloat(v/1000, 'f', 0, 64) + "k"
	case a >= 10_000:
		return strconv.FormatFloat(v/1000, 'f', 1, 64) + "k"
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 4, 64)
}

func (s Sizes) String() string {
	return fmt.Sprintf("%d messages of %d bytes a repeat, %d repeats, latency at %d/s, %d pending, %d handlers",
		s.Messages, s.Body, s.Repeats, s.Rate, s.Pending, s.Concurrency)
}

func (m Machine) memory() string {
	if m.MemoryBytes == 0 {
		return ""
	}
	return fmt.Sprintf(", %.0f GiB", float64(m.MemoryBytes)/(1<<30))
}
