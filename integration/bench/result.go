package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
)

// Result contains all measurements of one run.
type Result struct {
	Started   time.Time   `json:"started"`
	Seconds   float64     `json:"seconds"`
	Quick     bool        `json:"quick"`
	Machine   Machine     `json:"machine"`
	Sizes     Sizes       `json:"sizes"`
	Scenarios []*Scenario `json:"scenarios"`
}

// Machine describes the machine of a run.
type Machine struct {
	OS    string `json:"os"`
	Cores int    `json:"cores"`
	Go    string `json:"go"`
}

// Scenario is the result of one scenario.
type Scenario struct {
	Name    string   `json:"name"`
	Seconds float64  `json:"seconds"`
	Servers []string `json:"servers"` // such as RabbitMQ 4.3.1
	Cases   []*Case  `json:"cases"`
	Targets []Target `json:"targets"`
	Notes   []string `json:"notes,omitempty"` // what was skipped and why
}

// Case is the result of one case, which is either measured or a baseline.
type Case struct {
	Name     string    `json:"name"`
	Group    string    `json:"group"` // cases of one group are comparable
	Baseline bool      `json:"baseline"`
	Metrics  []*Metric `json:"metrics"`
}

// Metric is one figure of a case, with a value for each repeat.
type Metric struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
}

// Target is a claim with the measured value.
type Target struct {
	Text   string  `json:"text"`
	Unit   string  `json:"unit"` // x for a ratio
	Value  float64 `json:"value"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Bound  float64 `json:"bound"`
	AtMost bool    `json:"at_most"` // the bound is a maximum, otherwise a minimum
	Met    bool    `json:"met"`
}

// Names of metrics in claims.
const (
	metricRate        = "rate"
	metricAllocations = "allocations"
	metricP50         = "p50"
	metricP99         = "p99"
	metricMemory      = "memory per message"
	metricLastTenth   = "last tenth / first"
)

// Notef adds a single-line note, unless it already exists.
func (s *Scenario) Notef(format string, args ...any) {
	s.Notes = once(s.Notes, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// Uses adds a server, unless it is already listed.
func (s *Scenario) Uses(server string) { s.Servers = once(s.Servers, server) }

func once(list []string, one string) []string {
	if slices.Contains(list, one) {
		return list
	}
	return append(list, one)
}

// Find returns a case and creates it on first use.
func (s *Scenario) Find(group, name string, baseline bool) *Case {
	for _, c := range s.Cases {
		if c.Group == group && c.Name == name {
			return c
		}
	}
	c := &Case{Name: name, Group: group, Baseline: baseline}
	s.Cases = append(s.Cases, c)
	return c
}

// Add records the value of one repeat.
func (c *Case) Add(name, unit string, value float64) {
	m := c.Metric(name)
	if m == nil {
		m = &Metric{Name: name, Unit: unit}
		c.Metrics = append(c.Metrics, m)
	}
	m.Values = append(m.Values, value)
	m.Median, m.Min, m.Max = spread(m.Values)
}

// AddPercentiles records percentiles of values. It sorts values in place.
func (c *Case) AddPercentiles(unit string, values []float64, shares ...float64) {
	slices.Sort(values)
	for _, share := range shares {
		name := fmt.Sprintf("p%.0f", 100*share)
		if share == 1 {
			name = "max"
		}
		c.Add(name, unit, lateness.Percentile(values, share))
	}
}

// Metric returns the metric with the given name, or nil if it was not measured.
func (c *Case) Metric(name string) *Metric {
	for _, m := range c.Metrics {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// values returns the values of a case's metric, or none if it was not measured.
func (s *Scenario) values(group, name, metric string) (values []float64, unit string) {
	for _, c := range s.Cases {
		if m := c.Metric(metric); m != nil && c.Group == group && c.Name == name {
			return m.Values, m.Unit
		}
	}
	return nil, ""
}

// judge compares the measured values with the claims of a group.
func (s *Scenario) judge(group string, claims []claim) {
	for _, c := range claims {
		values, unit := s.values(group, c.ours, c.metric)
		text := c.ours + ": " + c.metric
		if c.over != "" {
			base, _ := s.values(group, c.over, c.metric)
			values, unit = ratios(values, base), "x"
			text += " / " + c.over
		}
		if len(values) == 0 {
			continue
		}
		t := Target{Text: text + "; " + group, Unit: unit, Bound: c.bound, AtMost: c.atMost}
		t.Value, t.Low, t.High = spread(values)
		t.Met = t.Value == c.bound || t.Value < c.bound == c.atMost
		s.Targets = append(s.Targets, t)
	}
}

// ratios divides the values of each repeat, because these were measured at about the same time.
func ratios(a, b []float64) []float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			list = append(list, a[i]/b[i])
		}
	}
	return list
}

// spread returns the median and the range of values, which must not be empty.
func spread(values []float64) (median, lowest, highest float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]
}
