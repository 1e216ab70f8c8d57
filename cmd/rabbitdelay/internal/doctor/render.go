package doctor

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// Style contains the options of Render.
type Style struct {
	Color bool // use ANSI colors, for a terminal
	Width int  // line width; default 100, at least 60; commands are not wrapped
}

const (
	defaultWidth = 100
	minWidth     = 60
	margin       = "  "
)

// These are the ANSI colours of severities and of secondary text.
const (
	red    = "\x1b[1;31m"
	yellow = "\x1b[1;33m"
	green  = "\x1b[1;32m"
	dim    = "\x1b[2m"
	bold   = "\x1b[1m"
	reset  = "\x1b[0m"
)

// Render writes the report in human-readable form.
func (r Report) Render(w io.Writer, s Style) error {
	if s.Width == 0 {
		s.Width = defaultWidth
	}
	s.Width = max(s.Width, minWidth)
	p := printer{Style: s}
	if !r.Complete() {
		p.wrapped("", margin, p.paint(yellow, "NOT EVERYTHING WAS CHECKED:")+" "+strings.Join(r.areas(), ", "))
	}
	p.linef("%s, virtual host %q, read by %s", p.paint(bold, "RabbitMQ "+r.Broker), r.Vhost, r.Source)
	for _, c := range r.Clocks {
		whose := "broker's clock"
		if len(r.Clocks) > 1 {
			whose = "clock of " + visible(c.Node)
		}
		p.linef("%s: %s this machine's, ±%v (by %s)", whose, c.ahead(), roughly(c.Resolution()), c.Method)
	}
	for _, f := range r.Findings {
		colour := yellow
		if f.Severity == SeverityCritical {
			colour = red
		}
		p.linef("")
		p.linef("%s %s", p.paint(colour, strings.ToUpper(string(f.Severity))), p.paint(bold, f.ID))
		p.wrapped(margin, margin, f.What)
		p.wrapped(margin+p.paint(dim, "why  "), margin+"     ", f.Why)
		p.linef("%s", margin+p.paint(dim, "fix ")+visible(f.Fix))
	}
	if !r.Complete() {
		p.linef("")
		p.linef("%s", p.paint(yellow, "not checked"))
		for _, u := range r.Unchecked {
			p.wrapped(margin+"- ", margin+"  ", string(u.Area)+": "+u.Why)
		}
	}
	if len(r.Notes) > 0 {
		p.linef("")
		p.linef("%s", p.paint(dim, "notes"))
		for _, n := range r.Notes {
			text, command, _ := strings.Cut(n, "\n")
			p.wrapped(margin+"- ", margin+"  ", text)
			if command != "" {
				p.linef("%s", margin+"  "+visible(command)) // on one line, so that it can be copied
			}
		}
	}
	p.linef("")
	p.linef("%s", p.summary(r))
	_, err := io.WriteString(w, p.b.String())
	return err
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

type printer struct {
	Style
	b strings.Builder
}

func (p *printer) summary(r Report) string {
	switch {
	case r.Clean() && r.Complete():
		return p.paint(green, "nothing is wrong")
	case r.Clean():
		return p.paint(yellow, "no problems were found in the parts that could be checked")
	}
	var parts []string
	if n := r.Count(SeverityCritical); n > 0 {
		parts = append(parts, p.paint(red, fmt.Sprintf("%d critical", n)))
	}
	if n := r.Count(SeverityWarning); n > 0 {
		parts = append(parts, p.paint(yellow, shown.Count(n, "warning", "warnings")))
	}
	return shown.Count(len(r.Findings), "finding", "findings") + ": " + strings.Join(parts, ", ")
}

func (p *printer) linef(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *printer) paint(colour, s string) string {
	if !p.Color {
		return s
	}
	return colour + s + reset
}

// wrapped writes text wrapped at the line width, with one indentation for the first line and another for the rest. It
// replaces control characters, which names may contain.
func (p *printer) wrapped(first, rest, text string) {
	line := first
	length := len(rest) // colours have no width
	empty := true
	for word := range strings.FieldsSeq(text) {
		word = visible(word)
		n := utf8.RuneCountInString(word)
		if !empty && length+1+n > p.Width {
			p.linef("%s", line)
			line, length, empty = rest, len(rest), true
		}
		if !empty {
			line += " "
			length++
		}
		line += word
		length += n
		empty = false
	}
	p.linef("%s", line)
}

// visible replaces the characters that a terminal would interpret as control characters.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '�'
		}
		return r
	}, s)
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
