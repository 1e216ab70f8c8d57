package pictures

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

//go:embed performance.json
var recorded []byte

// origin describes how figures were measured.
type origin struct {
	Recorded string `json:"recorded"` // the day on which they were recorded
	Versions string `json:"versions"`
	Command  string `json:"command"` // the command that measures the figures again
}

func (o origin) String() string { return o.Versions + ", recorded by " + o.Recorded }

// figures holds the results of the benchmark. Each cell has the same text as in a table of performance.md.
type figures struct {
	Lateness   lateness   `json:"lateness"`
	Load       load       `json:"load"`
	Throughput throughput `json:"throughput"`
}

type lateness struct {
	Origin origin        `json:"origin"`
	Rows   []latenessRow `json:"rows"`
}

type latenessRow struct {
	Name        string `json:"name"`
	Percentiles []int  `json:"percentiles"` // the percentiles that the cell contains; 100 is the maximum
	Cell        string `json:"cell"`
}

type load struct {
	Origin origin     `json:"origin"`
	Rates  []int      `json:"rates"`
	Lines  []loadLine `json:"lines"`
}

type loadLine struct {
	Name  string   `json:"name"`
	Cells []string `json:"cells"` // p50 and p99 at each rate
}

type throughput struct {
	Origin origin          `json:"origin"`
	Rows   []throughputRow `json:"rows"`
}

type throughputRow struct {
	Name     string `json:"name"`
	Baseline string `json:"baseline"`
	Quorum   string `json:"quorum"`
	Classic  string `json:"classic"`
}

func readFigures() figures {
	var f figures
	if err := json.Unmarshal(recorded, &f); err != nil {
		panic(err) // the file is embedded and tested
	}
	return f
}

var figure = regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`)

// valuesOf returns the figures in a cell.
func valuesOf(cell string) []float64 {
	var all []float64
	for _, s := range figure.FindAllString(cell, -1) {
		v, err := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
		if err != nil {
			panic(err) // the expression matches numbers only
		}
		all = append(all, v)
	}
	return all
}

func plots() []drawing {
	f := readFigures()
	return []drawing{
		{"lateness.svg", "Lateness at 1,000 messages a second", "The distribution of lateness from p50 to the maximum, for exact delivery, steps of 10 ms and steps of 100 ms. The figures are in the tables of performance.md.", f.Lateness.draw},
		{"load.svg", "Lateness by rate", "p50 and p99 of lateness for steps of 10 ms and of 100 ms, from 1,000 to 8,000 messages a second. With 10 ms both rise above a second at 8,000.", f.Load.draw},
		{"throughput.svg", "Rates compared with a baseline", "The rates of publishing and consuming as a ratio to the raw client or to the bare handler, for quorum and classic queues, with the range of the repeats.", f.Throughput.draw},
	}
}

// decades places v on a logarithmic axis from 10^low at position from to 10^high at position to.
func decades(v, low, high, from, to float64) float64 {
	return from + (math.Log10(v)-low)/(high-low)*(to-from)
}

// draw draws a row for each distribution, from p50 to the maximum.
func (f lateness) draw() *canvas {
	const left, right, top, row = 150, 820, 76, 40
	rows := f.Rows
	bottom := float64(top + row*len(rows))
	c := newCanvas(bottom + 74)
	at := func(v float64) float64 { return decades(v, -1, 3, left, right) }
	c.text("h", 24, 34, "Lateness at 1,000 messages a second, in ms")
	c.text("dim", 24, 54, "Circles at p50, p95 and p99 (exact: p50 and p99). The line ends at the maximum.")
	axis := []float64{0.1, 1, 10, 100, 1000}
	for _, v := range axis {
		c.line("grid", at(v), top, at(v), bottom)
		c.text("m dim", at(v), bottom+18, plain(v)+" ms")
	}
	for i, r := range rows {
		y := float64(top + row*i + row/2)
		values := valuesOf(r.Cell)
		class := "b"
		switch {
		case strings.HasPrefix(r.Name, "exact"):
			class = "c"
		case strings.HasPrefix(r.Name, "100"):
			class = "a"
		}
		c.text("e", left-12, y+4, r.Name)
		last := values[len(values)-1]
		c.line("line "+class, at(values[0]), y, at(last), y)
		c.line("line "+class, at(last), y-6, at(last), y+6)
		for j, p := range r.Percentiles {
			if p < 100 {
				c.dot(class, at(values[j]), y)
			}
		}
		c.text("m dim", at(values[0]), y-8, plain(values[0]))
		c.text("dim", at(last)+10, y+4, "max "+plain(last))
	}
	c.text("dim", 24, bottom+52, f.Origin.String()+". Exact is of another run than the rest.")
	return c
}

// draw draws p50 and p99 over the rate.
func (f load) draw() *canvas {
	const left, right, top, bottom = 90, 690, 76, 316
	c := newCanvas(bottom + 78)
	across := func(rate int) float64 { return left + 40 + float64(rate-1000)/7000*(right-left-60) }
	up := func(v float64) float64 { return decades(v, 0, 4, bottom, top) }
	c.text("h", 24, 34, "Lateness by rate, in ms")
	c.text("dim", 24, 54, "Solid: p50. Dashed: p99.")
	for _, v := range []float64{1, 10, 100, 1000, 10000} {
		c.line("grid", left, up(v), right, up(v))
		c.text("e dim", left-10, up(v)+4, plain(v))
	}
	for _, rate := range f.Rates {
		c.text("m dim", across(rate), bottom+20, plain(float64(rate))+"/s")
	}
	for i, l := range f.Lines {
		class := []string{"b", "a"}[i%2]
		for p, look := range []string{"line ", "line dashed "} {
			var points []float64
			for j, cell := range l.Cells {
				x, y := across(f.Rates[j]), up(valuesOf(cell)[p])
				points = append(points, x, y)
				c.dot(class, x, y)
			}
			c.line(look+class, points...)
			end := valuesOf(l.Cells[len(l.Cells)-1])[p]
			c.text(class, right+8, up(end)+[]float64{9, -1}[p], fmt.Sprintf("%s, %s", l.Name, []string{"p50", "p99"}[p]))
		}
	}
	c.text("dim", 24, bottom+58, f.Origin.String()+". Delays of 5 to 35 s.")
	return c
}

// draw draws the ratio to the baseline, with the range of the repeats.
func (f throughput) draw() *canvas {
	const left, right, top, row = 250, 790, 92, 44
	rows := f.Rows
	bottom := float64(top + row*len(rows))
	c := newCanvas(bottom + 74)
	at := func(v float64) float64 { return left + v/1.25*(right-left) }
	c.text("h", 24, 34, "Messages a second, divided by the baseline's")
	c.text("dim", 24, 54, "1 is the baseline. A circle is the median, a line the range of the repeats.")
	for i, name := range []string{"quorum queues", "classic queues"} {
		x := left + 150*float64(i)
		c.dot([]string{"a", "b"}[i], x, 73)
		c.text("dim", x+12, 77, name)
	}
	for _, v := range []float64{0, 0.25, 0.5, 0.75, 1, 1.25} {
		class := "grid"
		if v == 1 {
			class = "wire"
		}
		c.line(class, at(v), top, at(v), bottom)
		c.text("m dim", at(v), bottom+18, plain(v))
	}
	for i, r := range rows {
		y := float64(top + row*i + row/2)
		c.text("e", left-16, y-2, r.Name)
		c.text("e dim", left-16, y+14, "baseline: "+r.Baseline)
		for j, cell := range []string{r.Quorum, r.Classic} {
			v := valuesOf(cell) // two rates, the ratio, and its range
			class, at2 := []string{"a", "b"}[j], y-7+14*float64(j)
			c.line("line "+class, at(v[3]), at2, at(v[4]), at2)
			c.dot(class, at(v[2]), at2)
		}
	}
	c.text("dim", 24, bottom+52, f.Origin.String()+".")
	return c
}

// plain formats a figure with commas between thousands and without trailing zeros.
func plain(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if v >= 1000 {
		s = s[:len(s)-3] + "," + s[len(s)-3:]
	}
	return s
}
