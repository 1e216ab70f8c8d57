package bench

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"time"
)

//go:embed report.html
var page string

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"instant": func(t time.Time) string { return t.Format("2 January 2006, 15:04 MST") },
	"seconds": func(s float64) string { return fmt.Sprintf("%.0f s", s) },
}).Parse(page))

// WriteReport writes the result into a folder, which it makes: result.json, the
// plots as PNG, and index.html with the figures and the plots on one page.
func (r *Result) WriteReport(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "result.json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	pictures, err := r.pictures()
	if err != nil {
		return err
	}
	for _, p := range pictures {
		if err := writePicture(filepath.Join(dir, p.file), p); err != nil {
			return fmt.Errorf("%s: %w", p.file, err)
		}
	}
	var html bytes.Buffer
	if err := reportTemplate.Execute(&html, r.view(pictures)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "index.html"), html.Bytes(), 0o644)
}

func writePicture(path string, p picture) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return p.write(f)
}

// view is the result as the page shows it.
type view struct {
	*Result

	Memory   string
	Met      int
	Total    int
	Targets  []targetView
	Chapters []chapter
}

type targetView struct{ Text, Measured, Wanted, Verdict string }

type chapter struct {
	*Scenario

	Groups   []groupView
	Pictures []pictureView
}

type groupView struct {
	Name    string
	Columns []string
	Rows    []rowView
}

type rowView struct {
	Name     string
	Baseline bool
	Cells    []string
}

type pictureView struct{ File, Title string }

func (r *Result) view(pictures []picture) view {
	missed, total := r.Missed()
	v := view{Result: r, Memory: r.Machine.memory(), Met: total - missed, Total: total}
	for _, s := range r.Scenarios {
		for _, t := range s.Targets {
			v.Targets = append(v.Targets, targetView{t.Text, t.measured(), t.wanted(), t.verdict()})
		}
		c := chapter{Scenario: s}
		for _, group := range s.groups() {
			c.Groups = append(c.Groups, newGroupView(group))
		}
		for _, p := range pictures {
			if filepath.Ext(p.file) == ".png" && len(p.file) > len(s.Name) && p.file[:len(s.Name)] == s.Name {
				c.Pictures = append(c.Pictures, pictureView{p.file, p.title})
			}
		}
		v.Chapters = append(v.Chapters, c)
	}
	return v
}

func newGroupView(group []*Case) groupView {
	g := groupView{Name: group[0].Group}
	for _, m := range group[0].Metrics {
		name := m.Name
		if m.Unit != "" {
			name += ", " + m.Unit
		}
		g.Columns = append(g.Columns, name)
	}
	for _, c := range group {
		row := rowView{Name: c.Name, Baseline: c.Baseline}
		for _, m := range group[0].Metrics {
			cell := ""
			if own := c.metric(m.Name); own != nil {
				cell = number(own.Median)
				if own.Min != own.Max {
					cell += fmt.Sprintf(" (%s-%s)", number(own.Min), number(own.Max))
				}
			}
			row.Cells = append(row.Cells, cell)
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}
