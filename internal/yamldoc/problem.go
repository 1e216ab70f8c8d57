package yamldoc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem describes one mistake: its place, what was expected and what was found.
type Problem struct {
	// Path is the path of the value, e.g. "queues[2].message_ttl". It is empty if the problem concerns the whole
	// document.
	Path         string
	Origin       string // the flag or the environment variable; empty for a document
	Line, Column int    // position in the document, counted from 1; Column is 0 if only the line is known
	Message      string
}

func (p Problem) String() string {
	parts := []string{Place{p.Origin, p.Line, p.Column}.String(), p.Path, p.Message}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// Place is the source of a value. The zero Place means a default, or a value that was set in Go.
type Place struct {
	Origin       string // the flag or the environment variable; empty for a document
	Line, Column int    // position in the document, counted from 1; Column is 0 if only the line is known
}

func (p Place) String() string {
	switch {
	case p.Origin != "" || p.Line == 0:
		return p.Origin
	case p.Column == 0:
		return fmt.Sprintf("line %d", p.Line)
	}
	return fmt.Sprintf("line %d, column %d", p.Line, p.Column)
}

// Places maps paths to the places of their values.
type Places map[string]Place

// nearest returns the place of the value at path, or of the innermost enclosing value that has one.
func (p Places) nearest(path string) Place {
	for {
		place, ok := p[path]
		cut := strings.LastIndexAny(path, ".[")
		if ok || cut < 0 {
			return place
		}
		path = path[:cut]
	}
}

// maxProblems keeps the report short if the file is not a configuration at all.
const maxProblems = 100

// Problems collects up to 100 problems, and omits the rest.
type Problems []Problem

// Addf adds a problem.
func (ps *Problems) Addf(at Place, path, format string, args ...any) {
	if len(*ps) < maxProblems {
		*ps = append(*ps, Problem{Path: path, Origin: at.Origin, Line: at.Line, Column: at.Column, Message: fmt.Sprintf(format, args...)})
	}
}

// Add adds the problems that a check of the values found, each with its place. It omits problems of values that could
// not be read.
func (ps *Problems) Add(found []Problem, places Places) {
	for _, p := range found {
		if !ps.Cover(p.Path) {
			ps.Addf(places.nearest(p.Path), p.Path, "%s", p.Message)
		}
	}
}

// At reports whether there is a problem at path itself.
func (ps Problems) At(path string) bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return p.Path == path })
}

// Cover reports whether there is a problem at path, or at a value that contains it.
func (ps Problems) Cover(path string) bool {
	return slices.ContainsFunc(ps, func(p Problem) bool {
		rest, ok := strings.CutPrefix(path, p.Path)
		return ok && p.Path != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Sort sorts the problems by their lines in the document.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// String returns the only problem, or a list with one problem per line.
func (ps Problems) String() string {
	if len(ps) == 1 {
		return ps[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems:", len(ps))
	for _, p := range ps {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// Clip shortens a value that is quoted in a message. It replaces URLs entirely, because a URL in the wrong place may
// contain a password.
func Clip(s string) string {
	const most = 40
	if strings.Contains(s, "://") {
		return "(a URL)"
	}
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
