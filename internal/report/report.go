// Package report prints reports for people: lines and wrapped paragraphs, with colours on a terminal. The plan, the
// removal of objects and the doctor print with it. It replaces control characters in all texts, because the names of a
// broker's objects may contain some.
package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Style contains the options of a report. The zero value is for a pipe or a file.
type Style struct {
	Color bool // use ANSI colours, for a terminal
	Width int  // width at which paragraphs are wrapped, at least 60; 0: not at all
}

const minWidth = 60

// Printer collects the lines of a report, until Flush writes them.
type Printer struct {
	style Style
	lines strings.Builder
}

// New returns a printer for an empty report.
func New(s Style) *Printer {
	if s.Width > 0 {
		s.Width = max(s.Width, minWidth)
	}
	return &Printer{style: s}
}

// Flush writes the collected lines to w.
func (p *Printer) Flush(w io.Writer) error {
	_, err := io.WriteString(w, p.lines.String())
	p.lines.Reset()
	return err
}

// Text is a text in one style.
type Text struct{ text, code string }

// Plain returns a text without a style, formatted as by fmt.Sprintf.
func Plain(format string, args ...any) Text { return Text{fmt.Sprintf(format, args...), ""} }

// Red returns a text that reports a serious problem.
func Red(text string) Text { return Text{text, "\x1b[1;31m"} }

// Yellow returns a text that warns.
func Yellow(text string) Text { return Text{text, "\x1b[1;33m"} }

// Green returns a text that reports that something is in order.
func Green(text string) Text { return Text{text, "\x1b[1;32m"} }

// Dim returns a text of secondary importance.
func Dim(text string) Text { return Text{text, "\x1b[2m"} }

// Bold returns a text such as a name or a heading.
func Bold(text string) Text { return Text{text, "\x1b[1m"} }

const reset = "\x1b[0m"

// Line prints one line, which is never wrapped, so that a command can be copied.
func (p *Printer) Line(texts ...Text) {
	for _, t := range texts {
		p.write(t.code, visible(t.text))
	}
	p.lines.WriteByte('\n')
}

// Paragraph prints texts that are wrapped between words at the width of the report. All lines but the first begin with
// as many spaces as indent says.
func (p *Printer) Paragraph(indent int, texts ...Text) {
	var line int     // characters printed on the current line
	var space string // spaces before the next word, which are not printed if the word begins a new line
	first := true    // whether the line has no word yet, so that a word must not be moved to the next one
	for _, t := range texts {
		rest := visible(t.text)
		for rest != "" {
			n := len(rest) - len(strings.TrimLeft(rest, " "))
			space += rest[:n]
			word, _, _ := strings.Cut(rest[n:], " ")
			rest = rest[n+len(word):]
			if word == "" {
				break
			}
			length := utf8.RuneCountInString(word)
			if p.style.Width > 0 && !first && space != "" && line+len(space)+length > p.style.Width {
				p.lines.WriteString("\n" + strings.Repeat(" ", indent))
				line, space = indent, ""
			}
			p.lines.WriteString(space)
			p.write(t.code, word)
			line += len(space) + length
			space, first = "", false
		}
	}
	p.lines.WriteByte('\n')
}

func (p *Printer) write(code, text string) {
	if code == "" || text == "" || !p.style.Color {
		p.lines.WriteString(text)
		return
	}
	p.lines.WriteString(code + text + reset)
}

// visible replaces control characters, and invisible ones such as those that change the writing direction.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
