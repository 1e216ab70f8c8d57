package doctor

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// defaultWidth is the width of a report that is not printed to a terminal.
const defaultWidth = 100

// indent is the indentation of the lines that belong to a heading, and label the one of the lines after "why".
const (
	indent = 2
	label  = 7
)

// Render writes the report in human-readable form. If the style has no width, it wraps lines at 100 characters.
func (r Report) Render(w io.Writer, s report.Style) error {
	if s.Width == 0 {
		s.Width = defaultWidth
	}
	p := report.New(s)
	if !r.Complete() {
		p.Paragraph(indent, report.Yellow("NOT EVERYTHING WAS CHECKED:"), report.Plain(" %s", strings.Join(r.areas(), ", ")))
	}
	p.Line(report.Bold("RabbitMQ "+r.Broker), report.Plain(", virtual host %q, read by %s", r.Vhost, r.Source))
	for _, c := range r.Clocks {
		whose := "broker's clock"
		if len(r.Clocks) > 1 {
			whose = "clock of " + c.Node
		}
		p.Line(report.Plain("%s: %s this machine's, ±%v (by %s)", whose, c.ahead(), roughly(c.Resolution()), c.Method))
	}
	for _, f := range r.Findings {
		p.Line()
		p.Line(f.Severity.paint(strings.ToUpper(string(f.Severity))), report.Plain(" "), report.Bold(f.ID))
		p.Paragraph(indent, report.Plain("  %s", f.What))
		p.Paragraph(label, report.Dim("  why  "), report.Plain("%s", f.Why))
		p.Line(report.Dim("  fix "), report.Plain("%s", f.Fix))
	}
	if !r.Complete() {
		p.Line()
		p.Line(report.Yellow("not checked"))
		for _, u := range r.Unchecked {
			p.Paragraph(2*indent, report.Plain("  - %s: %s", u.Area, u.Why))
		}
	}
	if len(r.Notes) > 0 {
		p.Line()
		p.Line(report.Dim("notes"))
		for _, n := range r.Notes {
			text, command, _ := strings.Cut(n, "\n")
			p.Paragraph(2*indent, report.Plain("  - %s", text))
			if command != "" {
				p.Line(report.Plain("    %s", command)) // on one line, so that it can be copied
			}
		}
	}
	p.Line()
	p.Line(r.summary()...)
	return p.Flush(w)
}

func (r Report) areas() []string {
	var areas []string
	for _, u := range r.Unchecked {
		if !slices.Contains(areas, string(u.Area)) {
			areas = append(areas, string(u.Area))
		}
	}
	return areas
}

func (r Report) summary() []report.Text {
	switch {
	case r.Clean() && r.Complete():
		return []report.Text{report.Green("nothing is wrong")}
	case r.Clean():
		return []report.Text{report.Yellow("no problems were found in the parts that could be checked")}
	}
	out := []report.Text{report.Plain("%s: ", shown.Count(len(r.Findings), "finding", "findings"))}
	critical, warnings := r.Count(SeverityCritical), r.Count(SeverityWarning)
	if critical > 0 {
		out = append(out, SeverityCritical.paint(fmt.Sprintf("%d critical", critical)))
	}
	if critical > 0 && warnings > 0 {
		out = append(out, report.Plain(", "))
	}
	if warnings > 0 {
		out = append(out, SeverityWarning.paint(shown.Count(warnings, "warning", "warnings")))
	}
	return out
}

func (s Severity) paint(text string) report.Text {
	if s == SeverityCritical {
		return report.Red(text)
	}
	return report.Yellow(text)
}

// maxListed is the number of names that a sentence lists. Finding.Objects contains all names.
const maxListed = 3

func texts[T any](all []T, text func(T) string) []string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = text(v)
	}
	return out
}

// list formats names as "a, b, c and 4 more".
func list(names []string) string {
	if len(names) <= maxListed+1 {
		if n := len(names); n > 1 {
			return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
		}
		return strings.Join(names, "")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
}

// ctl returns a rabbitmqctl command for the virtual host. It quotes arguments for a shell if necessary.
func (x *examination) ctl(command string, args ...string) string {
	all := []string{"rabbitmqctl", "-p", shellQuote(x.cfg.Vhost), command}
	for _, a := range args {
		all = append(all, shellQuote(a))
	}
	return strings.Join(all, " ")
}

func (x *examination) run(command string) string {
	if x.cfg.File == "" {
		return "rabbitdelay " + command
	}
	return "rabbitdelay " + command + " -f " + shellQuote(x.cfg.File)
}

// destroy returns the command that deletes layouts, or single queues of a layout. The command refuses to delete queues
// that contain messages.
func (x *examination) destroy(names []string) string {
	return x.run("destroy") + " --layout " + shellQuote(strings.Join(names, ","))
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=@,+-]+$`)

func shellQuote(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func roughly(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	default:
		return d.Round(100 * time.Microsecond)
	}
}

// ahead formats the difference as "2ms behind" or "1.5s ahead of".
func (c Clock) ahead() string {
	if d := c.Difference(); d < 0 {
		return fmt.Sprintf("%v behind", roughly(-d))
	}
	return fmt.Sprintf("%v ahead of", roughly(c.Difference()))
}
