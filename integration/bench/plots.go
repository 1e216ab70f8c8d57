package bench

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Colours that people who cannot tell red from green can tell apart.
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{230, 159, 0, 255},
	color.RGBA{80, 80, 80, 255}, color.RGBA{160, 160, 60, 255},
}

var (
	ourColour      = palette[0]
	baselineColour = color.RGBA{150, 150, 150, 255}
)

// picture is a plot with its size.
type picture struct {
	file          string
	title         string
	plot          *plot.Plot
	width, height vg.Length
}

const dpi = 144

func (p picture) write(w io.Writer) error {
	canvas := vgimg.NewWith(vgimg.UseWH(p.width, p.height), vgimg.UseDPI(dpi))
	p.plot.Draw(draw.New(canvas))
	_, err := vgimg.PngCanvas{Canvas: canvas}.WriteTo(w)
	return err
}

// pictures are the plots that the result has figures for.
func (r *Result) pictures() ([]picture, error) {
	var list []picture
	for _, s := range r.Scenarios {
		for i, group := range s.groups() {
			var p picture
			var err error
			switch {
			case group[0].metric(metricP99) != nil && group[0].Curve != nil:
				p, err = latenessPlot(group)
			case s.Name == ScenarioPending:
				p, err = memoryPlot(group)
			default:
				p, err = ratePlot(s.Name, group)
			}
			if err != nil {
				return nil, err
			}
			if p.plot != nil {
				p.file = fmt.Sprintf("%s-%d.png", s.Name, i+1)
				list = append(list, p)
			}
		}
	}
	return list, nil
}

// groups are the cases that share a plot.
func (s *Scenario) groups() [][]*Case {
	var list [][]*Case
	for _, c := range s.Cases {
		if n := len(list); n > 0 && list[n-1][0].Group == c.Group {
			list[n-1] = append(list[n-1], c)
		} else {
			list = append(list, []*Case{c})
		}
	}
	return list
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Title.Padding = vg.Points(8)
	p.Title.TextStyle.Font.Size = vg.Points(13)
	return p
}

// latenessPlot is the cumulative distribution of the last repeat.
func latenessPlot(group []*Case) (picture, error) {
	p := newPlot("Lateness, "+group[0].Group, "milliseconds after the due instant (logarithmic)", "share of messages")
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	const least = 0.5 // the logarithm needs a least value; below it all are on time
	most := 10.0
	for i, c := range group {
		points := make(plotter.XYs, 0, len(c.Curve))
		for _, point := range c.Curve {
			points = append(points, plotter.XY{X: max(point.X, least), Y: point.Y})
			most = max(most, point.X)
		}
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return picture{}, err
		}
		line.Color = palette[i%len(palette)]
		line.Width = vg.Points(2)
		if c.Baseline {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		p.Add(line)
		p.Legend.Add(c.Name, line)
	}
	p.X.Min, p.X.Max = least, math.Pow(10, math.Ceil(math.Log10(most)))
	p.Y.Min, p.Y.Max = 0, 1+0.09*float64(len(group)) // the legend stands above the curves
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.25}, {Value: 0.5, Label: "0.5"}, {Value: 0.75}, {Value: 1, Label: "1"}}
	p.Legend.Left, p.Legend.Top = true, true
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs = vg.Points(8)
	return picture{title: p.Title.Text, plot: p, width: 18 * vg.Centimeter, height: 10 * vg.Centimeter}, nil
}

// ratePlot has a horizontal bar for each case, with the range of its repeats.
func ratePlot(scenario string, group []*Case) (picture, error) {
	p := newPlot(scenario+", "+group[0].Group, "", "")
	var names []string
	most := 0.0
	for _, c := range slices.Backward(group) {
		m := c.metric(metricRate)
		if m == nil {
			continue
		}
		bar, err := plotter.NewBarChart(plotter.Values{m.Median}, vg.Points(16))
		if err != nil {
			return picture{}, err
		}
		bar.Horizontal = true
		bar.XMin = float64(len(names))
		bar.Color = ourColour
		if c.Baseline {
			bar.Color = baselineColour
		}
		bar.LineStyle.Width = 0
		errors, err := plotter.NewXErrorBars(interval{m, bar.XMin})
		if err != nil {
			return picture{}, err
		}
		errors.Width = vg.Points(1)
		label, err := plotter.NewLabels(plotter.XYLabels{
			XYs: plotter.XYs{{X: m.Max, Y: bar.XMin}}, Labels: []string{" " + number(m.Median)},
		})
		if err != nil {
			return picture{}, err
		}
		label.TextStyle[0].YAlign = draw.YCenter
		p.Add(bar, errors, label)
		names = append(names, " "+c.Name) // the longest would touch the edge
		most = max(most, m.Max)
		p.X.Label.Text = m.Unit
	}
	if len(names) == 0 {
		return picture{}, nil
	}
	p.NominalY(names...)
	p.X.Min, p.X.Max = 0, most*1.12
	p.X.Tick.Marker = round{}
	return picture{title: p.Title.Text, plot: p, width: 20 * vg.Centimeter, height: vg.Length(float64(len(names))*0.85+2.6) * vg.Centimeter}, nil
}

// round marks an axis that begins at 0 at round figures.
type round struct{}

func (round) Ticks(_, most float64) []plot.Tick {
	if !(most > 0) {
		return []plot.Tick{{Value: 0, Label: "0"}}
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for most/step < 4 {
		step /= 2
	}
	ticks := []plot.Tick{{Value: 0, Label: "0"}}
	for v := step; v <= most; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: number(v)})
	}
	return ticks
}

// interval is the range of a metric's repeats, at a bar.
type interval struct {
	m *Metric
	y float64
}

func (interval) Len() int                         { return 1 }
func (i interval) XY(int) (x, y float64)          { return i.m.Median, i.y }
func (i interval) XError(int) (low, high float64) { return i.m.Min - i.m.Median, i.m.Max - i.m.Median }

// memoryPlot is the growth of the broker's memory with what waits.
func memoryPlot(group []*Case) (picture, error) {
	p := newPlot("Waiting messages and the broker's memory, "+group[0].Group, "waiting messages", "MiB more than before")
	p.Add(plotter.NewGrid())
	found := false
	for i, c := range group {
		points := plotter.XYs{{X: 0, Y: 0}}
		for _, point := range c.Curve {
			points = append(points, plotter.XY{X: point.X, Y: point.Y / (1 << 20)})
		}
		if len(points) == 1 {
			continue
		}
		found = true
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return picture{}, err
		}
		line.Color, dots.Color = palette[i%len(palette)], palette[i%len(palette)]
		line.Width = vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(c.Name, line, dots)
	}
	if !found {
		return picture{}, nil
	}
	p.Y.Min = min(p.Y.Min, 0)
	p.X.Tick.Marker = round{}
	p.Legend.Left, p.Legend.Top = true, true
	p.Legend.XOffs = vg.Points(8)
	return picture{title: p.Title.Text, plot: p, width: 18 * vg.Centimeter, height: 9 * vg.Centimeter}, nil
}
