package bench

import (
	"fmt"
	"time"
)

// Result is everything that one run measured.
type Result struct {
	Started   time.Time   `json:"started"`
	Seconds   float64     `json:"seconds"`
	Quick     bool        `json:"quick"`
	Machine   Machine     `json:"machine"`
	Sizes     Sizes       `json:"sizes"`
	Scenarios []*Scenario `json:"scenarios"`
}

// Sizes are the options that the figures depend on.
type Sizes struct {
	Messages    int `json:"messages"`
	Rate        int `json:"rate"`
	Repeats     int `json:"repeats"`
	Pending     int `json:"pending"`
	Body        int `json:"body_bytes"`
	Concurrency int `json:"concurrency"`
}

// Scenario is what was measured for one question.
type Scenario struct {
	Name    string   `json:"name"`
	Seconds float64  `json:"seconds"`
	Servers []string `json:"servers"` // such as RabbitMQ 4.3.1
	Cases   []*Case  `json:"cases"`
	Targets []Target `json:"targets"`
	Notes   []string `json:"notes,omitempty"` // what was left out and why
}

// Case is one thing that was measured, or one that it is measured against.
type Case struct {
	Name     string    `json:"name"`
	Group    string    `json:"group"` // cases of one group are comparable
	Baseline bool      `json:"baseline"`
	Metrics  []*Metric `json:"metrics"`
	Curve    []Point   `json:"curve,omitempty"` // distribution or course, for the plots
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

// Point of a curve.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Target is a claim with what was measured for it.
type Target struct {
	Text   string  `json:"text"`
	Unit   string  `json:"unit"` // x for a ratio
	Value  float64 `json:"value"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Bound  float64 `json:"bound"`
	AtMost bool    `json:"at_most"` // else at least
	Met    bool    `json:"met"`
}

func (s *Scenario) notef(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}

// find returns a case, made on first use.
func (s *Scenario) find(group, name string, baseline bool) *Case {
	for _, c := range s.Cases {
		if c.Group == group && c.Name == name {
			return c
		}
	}
	c := &Case{Name: name, Group: group, Baseline: baseline}
	s.Cases = append(s.Cases, c)
	return c
}

// add records the value of one repeat.
func (c *Case) add(name, unit string, value float64) {
	m := c.metric(name)
	if m == nil {
		m = &Metric{Name: name, Unit: unit}
		c.Metrics = append(c.Metrics, m)
	}
	m.Values = append(m.Values, value)
	m.Median, m.Min, m.Max = spread(m.Values)
}

func (c *Case) metric(name string) *Metric {
	for _, m := range c.Metrics {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// ratio claims that ours divided by the baseline is at least, or at most, the
// bound. Repeats are compared pair by pair, because they ran side by side. There
// is no claim when one of the two was not measured.
func (s *Scenario) ratio(text string, ours, baseline *Case, metric string, bound float64, atMost bool) {
	a, b := ours.metric(metric), baseline.metric(metric)
	if a == nil || b == nil {
		return
	}
	var ratios []float64
	for i := range min(len(a.Values), len(b.Values)) {
		if b.Values[i] != 0 {
			ratios = append(ratios, a.Values[i]/b.Values[i])
		}
	}
	s.claim(text, "x", ratios, bound, atMost)
}

// atMost claims that a figure is at most the bound.
func (s *Scenario) atMost(text string, c *Case, metric string, bound float64) {
	if m := c.metric(metric); m != nil {
		s.claim(text, m.Unit, m.Values, bound, true)
	}
}

// atLeast claims that a figure is at least the bound.
func (s *Scenario) atLeast(text string, c *Case, metric string, bound float64) {
	if m := c.metric(metric); m != nil {
		s.claim(text, m.Unit, m.Values, bound, false)
	}
}

func (s *Scenario) claim(text, unit string, values []float64, bound float64, atMost bool) {
	if len(values) == 0 {
		return
	}
	t := Target{Text: text, Unit: unit, Bound: bound, AtMost: atMost}
	t.Value, t.Low, t.High = spread(values)
	t.Met = t.Value >= bound
	if atMost {
		t.Met = t.Value <= bound
	}
	s.Targets = append(s.Targets, t)
}

// Missed counts the targets that were not met.
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
