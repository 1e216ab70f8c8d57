package report_test

import (
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/report"
)

func render(t *testing.T, style report.Style, content func(*report.Printer)) string {
	t.Helper()
	var b strings.Builder
	p := report.New(style)
	content(p)
	if err := p.Flush(&b); err != nil {
		t.Fatalf("Flush: got %v, want no error", err)
	}
	return b.String()
}

func TestParagraph(t *testing.T) {
	words := strings.Repeat("ab cd ", 15)
	for _, c := range []struct {
		name string
		text string
		want string
	}{
		{"short", "one two", "mark    one two\n"},
		{"wrapped", words, "mark    " + strings.Repeat("ab cd ", 8) + "ab\n    " + "cd " + strings.Repeat("ab cd ", 6) + "\n"},
		{"a word longer than a line", strings.Repeat("x", 70) + " end", "mark\n    " + strings.Repeat("x", 70) + "\n    end\n"},
		{"spaces within the text", "a   b", "mark    a   b\n"},
		{"empty", "", "mark\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := render(t, report.Style{Width: 60}, func(p *report.Printer) {
				p.Paragraph(4, report.Red("mark"), report.Plain("    %s", c.text))
			})
			if trimmed(got) != trimmed(c.want) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			for line := range strings.Lines(got) {
				if n := len(strings.TrimSuffix(line, "\n")); n > 60 && !strings.Contains(line, "xx") {
					t.Errorf("got a line of %d characters, want at most 60: %s", n, line)
				}
			}
		})
	}
}

func trimmed(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// Without a width, for a pipe or a file, paragraphs stay on one line.
func TestParagraphWithoutWidth(t *testing.T) {
	text := strings.Repeat("word ", 100) + "end"
	got := render(t, report.Style{}, func(p *report.Printer) { p.Paragraph(4, report.Plain("%s", text)) })
	if got != text+"\n" {
		t.Errorf("got %q, want one line with the whole text", got)
	}
}

// Names of a broker's objects may contain control characters, which must not reach the terminal.
func TestControlCharacters(t *testing.T) {
	const name = "queue\x1b[2J\n\u202ename"
	for _, style := range []report.Style{{}, {Width: 80}} {
		got := render(t, style, func(p *report.Printer) {
			p.Line(report.Bold(name), report.Plain(" %s", name))
			p.Paragraph(4, report.Dim(name), report.Plain(" %s", name))
		})
		if strings.ContainsAny(got, "\x1b\u202e") || strings.Count(got, "\n") != 2 {
			t.Errorf("with the style %+v: got %q, want two lines without control characters", style, got)
		}
	}
}

func TestColours(t *testing.T) {
	content := func(p *report.Printer) { p.Paragraph(0, report.Green("+ create"), report.Plain(" queue a")) }
	if got, want := render(t, report.Style{}, content), "+ create queue a\n"; got != want {
		t.Errorf("without colours: got %q, want %q", got, want)
	}
	if got, want := render(t, report.Style{Color: true}, content), "\x1b[1;32m+\x1b[0m \x1b[1;32mcreate\x1b[0m queue a\n"; got != want {
		t.Errorf("with colours: got %q, want %q", got, want)
	}
}
