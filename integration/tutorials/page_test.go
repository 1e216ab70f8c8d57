package tutorials

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A page is the text of a tutorial and its parts in order.
type page struct {
	path  string
	text  string
	parts []part
}

// A part is a fenced block on a page.
type part struct {
	kind    string // the language after the fence: go, yaml, console, …
	step    int    // the number of the heading above, such as 3 for "## 3. Orders"; 0 without a number
	file    string // the file that the block shows completely, if the line above names it in bold; empty otherwise
	content string
	from    int // the position in the page at which the content starts
	line    int
}

var (
	blocks   = regexp.MustCompile("(?s)\n```(\\w*)\n(.*?\n)```\n")
	heading  = regexp.MustCompile(`(?m)^## (?:(\d+)\. )?`)
	boldFile = regexp.MustCompile("\\*\\*`([^`]+)`\\*\\*")
)

// readPage reads a tutorial in docs.
func readPage(t *testing.T, name string) *page {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := &page{path: path, text: string(text)}
	for _, m := range blocks.FindAllStringSubmatchIndex(p.text, -1) {
		above := p.text[:m[0]]
		b := part{kind: p.text[m[2]:m[3]], content: p.text[m[4]:m[5]], from: m[4], line: strings.Count(above, "\n") + 2}
		if all := heading.FindAllStringSubmatch(blocks.ReplaceAllString(above, ""), -1); len(all) > 0 {
			b.step, _ = strconv.Atoi(all[len(all)-1][1])
		}
		lines := strings.Split(strings.TrimSpace(above), "\n")
		if name := boldFile.FindStringSubmatch(lines[len(lines)-1]); name != nil {
			b.file = name[1]
		}
		p.parts = append(p.parts, b)
	}
	if len(p.parts) == 0 {
		t.Fatalf("%s contains no code blocks, want at least one", path)
	}
	return p
}

// at returns the path and line of a part, for messages.
func (p *page) at(b part) string { return fmt.Sprintf("%s, line %d", p.path, b.line) }

// A command is the text after "$ " in a console block. A ^C interrupts the running program, and a block that starts
// without a command shows the next output of that program.
type command struct {
	typed  string
	prints []string
}

// commands splits a console block.
func (b part) commands() (list []command) {
	for line := range strings.Lines(b.content) {
		line = strings.TrimSuffix(line, "\n")
		typed, is := strings.CutPrefix(line, "$ ")
		switch {
		case is:
			list = append(list, command{typed: typed})
		case line == interrupt || len(list) == 0:
			list = append(list, command{})
			fallthrough
		default:
			last := &list[len(list)-1]
			last.prints = append(last.prints, line)
		}
	}
	return list
}

// join is the inverse of commands.
func join(list []command) string {
	var text strings.Builder
	for _, c := range list {
		if c.typed != "" {
			text.WriteString("$ " + c.typed + "\n")
		}
		for _, line := range c.prints {
			text.WriteString(line + "\n")
		}
	}
	return text.String()
}

// checkCode compares the code on a page with the programs in a folder. Each step has a separate folder such as step3,
// or the folder itself contains the program for all steps. If a block has a file name, it must be the whole file. Any
// other Go block must contain lines from a file, possibly with another indentation.
func (p *page) checkCode(t *testing.T, programs string) {
	t.Helper()
	for _, b := range p.parts {
		dir := stepDir(programs, b.step)
		switch {
		case b.file != "":
			got, err := os.ReadFile(filepath.Join(dir, b.file))
			if err != nil || string(got) != b.content {
				t.Errorf("%s: the code differs from %s in %s (error %v), want the file's content:\n%s", p.at(b), b.file, dir, err, got)
			}
		case b.kind == "go":
			if !shownIn(t, dir, b.content) {
				t.Errorf("%s: no file in %s contains these lines, want one that does:\n%s", p.at(b), dir, b.content)
			}
		}
	}
}

func stepDir(programs string, step int) string {
	dir := filepath.Join(programs, fmt.Sprintf("step%d", step))
	if _, err := os.Stat(dir); err != nil {
		return programs
	}
	return dir
}

var indent = regexp.MustCompile(`(?m)^\t+`)

// shownIn reports whether a Go file in a folder contains the lines of an excerpt.
func shownIn(t *testing.T, dir, excerpt string) bool {
	t.Helper()
	want := indent.ReplaceAllString(excerpt, "")
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(indent.ReplaceAll(content, nil), []byte(want)) {
			return true
		}
	}
	return false
}
