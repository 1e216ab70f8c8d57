package pictures

import (
	"encoding/json"
	"slices"
	"strings"
)

// comparison contains the results of make compare. Each row has a contender's name and the cells of its row in a table.
type comparison struct {
	Recorded  string     `json:"recorded"`
	Versions  string     `json:"versions"`
	Lateness  [][]string `json:"lateness"`  // earliest, p50, p95, p99 and the maximum, in ms
	Processor [][]string `json:"processor"` // processor time of the client, RabbitMQ and the database, and the total, in us
	Rates     [][]string `json:"rates"`     // one at a time, its ratio, in batches, and its ratio
}

// Comparison draws the figures of make compare, which are in its compare.json. It leaves out pictures without figures.
func Comparison(figures []byte) ([]Picture, error) {
	var all []Picture
	drawn, err := comparisonOf(figures)
	for _, d := range drawn {
		all = append(all, Picture{Name: d.name, SVG: d.draw().svg(d.title, d.description)})
	}
	return all, err
}

func comparisonOf(figures []byte) (all []drawing, err error) {
	var c comparison
	if err := json.Unmarshal(figures, &c); err != nil {
		return nil, err
	}
	if len(c.Lateness) > 0 {
		all = append(all, drawing{"compare-lateness.svg", "Lateness of rabbitdelay and of other tools", "The distribution of lateness from p50 to the maximum, for each contender of make compare, and how early the earliest task was.", c.drawLateness})
	}
	if len(c.Processor) > 0 {
		all = append(all, drawing{"compare-processor.svg", "Processor time of a task", "The processor time of client, RabbitMQ and database per task, for each contender of make compare.", c.drawProcessor})
	}
	if len(c.Rates) > 0 {
		all = append(all, drawing{"compare-rates.svg", "Tasks scheduled per second", "How many tasks each contender of make compare schedules per second, one at a time and in batches.", c.drawRates})
	}
	return all, nil
}

func (f comparison) origin() origin { return origin{Recorded: f.Recorded, Versions: f.Versions} }

// medianOf returns the first figure of a cell, which is the median, or 0 for an empty cell.
func medianOf(cell string) float64 {
	if all := valuesOf(cell); len(all) > 0 {
		return all[0]
	}
	return 0
}

// classOf returns the CSS class of a contender: "a" for rabbitdelay's own, "b" for the others.
func classOf(name string) string {
	if strings.HasPrefix(name, "rabbitdelay") {
		return "a"
	}
	return "b"
}

// These are the positions of the rows in the pictures of the comparison.
const (
	comparedLeft, comparedRight = 270, 710
	comparedTop, comparedRow    = 76, 34
)

// drawLateness draws a row for each contender, from p50 to the maximum.
func (f comparison) drawLateness() *canvas {
	const left, right, top, row = comparedLeft, comparedRight, comparedTop, comparedRow
	bottom := float64(top + row*len(f.Lateness))
	c := newCanvas(bottom + 74)
	at := func(v float64) float64 { return decades(max(v, 0.1), -1, 4, left, right) }
	c.text("h", 24, 34, "Lateness at a steady rate, in ms")
	c.text("dim", 24, 54, "Circles at p50, p95 and p99. The line ends at the maximum.")
	for _, v := range []float64{0.1, 1, 10, 100, 1000, 10000} {
		c.line("grid", at(v), top, at(v), bottom)
		c.text("m dim", at(v), bottom+18, plain(v))
	}
	for i, r := range f.Lateness {
		y := float64(top + row*i + row/2)
		class, last := classOf(r[0]), medianOf(r[5])
		c.text("e", left-12, y+4, r[0])
		c.line("line "+class, at(medianOf(r[2])), y, at(last), y)
		c.line("line "+class, at(last), y-6, at(last), y+6)
		for _, cell := range r[2:5] {
			c.dot(class, at(medianOf(cell)), y)
		}
		if strings.HasPrefix(r[1], "-") {
			c.text("bad", right+14, y+4, plain(medianOf(r[1]))+" ms early")
		}
	}
	c.text("dim", 24, bottom+52, f.origin().String()+".")
	return c
}

// drawProcessor draws the processor time of a task as a bar of up to three parts.
func (f comparison) drawProcessor() *canvas {
	const left, right, top, row = comparedLeft, comparedRight, comparedTop + 20, comparedRow
	bottom := float64(top + row*len(f.Processor))
	c := newCanvas(bottom + 46)
	longest := slices.MaxFunc(f.Processor, func(a, b []string) int { return int(medianOf(a[4]) - medianOf(b[4])) })
	scale := (right - left) / medianOf(longest[4])
	c.text("h", 24, 34, "Processor time of a task at a steady rate, in us")
	c.text("dim", 24, 54, "From scheduling to handling, with what the programs do while nothing is due.")
	classes := []string{"a", "b", "c"}
	for i, name := range []string{"client", "RabbitMQ", "PostgreSQL or Redis"} {
		x := left + 100*float64(i)
		c.dot(classes[i], x, 77)
		c.text("dim", x+12, 81, name)
	}
	for i, r := range f.Processor {
		x, y := float64(left), float64(top+row*i+row/2)
		c.text("e", left-12, y+4, r[0])
		for j, cell := range r[1:4] {
			w := scale * medianOf(cell)
			c.addf(`<rect class="dot %s" x="%.5g" y="%.5g" width="%.5g" height="16"/>`, classes[j], x, y-8, w)
			x += w
		}
		c.text("dim", x+8, y+4, plain(medianOf(r[4])))
	}
	c.text("dim", 24, bottom+24, f.origin().String()+".")
	return c
}

// drawRates draws how many tasks are scheduled per second.
func (f comparison) drawRates() *canvas {
	const left, right, top, row = comparedLeft, comparedRight, comparedTop + 20, comparedRow
	bottom := float64(top + row*len(f.Rates))
	c := newCanvas(bottom + 74)
	at := func(v float64) float64 { return decades(max(v, 100), 2, 6, left, right) }
	c.text("h", 24, 34, "Tasks scheduled per second, from 64 goroutines")
	c.text("dim", 24, 54, "A line is the range of the repeats. asynq has no batches.")
	for i, name := range []string{"one at a time", "in batches of 500"} {
		x := left + 130*float64(i)
		c.dot([]string{"a", "b"}[i], x, 77)
		c.text("dim", x+12, 81, name)
	}
	for _, v := range []float64{100, 1000, 10000, 100000} {
		c.line("grid", at(v), top, at(v), bottom)
		c.text("m dim", at(v), bottom+18, plain(v))
	}
	for i, r := range f.Rates {
		y := float64(top + row*i + row/2)
		c.text("e", left-12, y+4, r[0])
		for j, cell := range []string{r[1], r[3]} {
			values, class := valuesOf(cell), []string{"a", "b"}[j]
			if len(values) == 0 {
				continue
			}
			if len(values) == 3 {
				c.line("line "+class, at(values[1]), y, at(values[2]), y)
			}
			c.dot(class, at(values[0]), y)
		}
	}
	c.text("dim", 24, bottom+52, f.origin().String()+".")
	return c
}
