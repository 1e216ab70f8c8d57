package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

// everyCommand calls f for each command, except those that cobra adds.
func everyCommand(f func(c *cobra.Command)) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if !documented(c) || c.Name() == "help" {
			return
		}
		f(c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(program.Command(&term.Terminal{}, command))
}

// Help is short: at most 300 characters about what the command does, one to three examples, and lines that fit a
// terminal. Details are on the reference page.
func TestHelpIsShort(t *testing.T) {
	everyCommand(func(c *cobra.Command) {
		if n := utf8.RuneCountInString(c.Long); n > 300 {
			t.Errorf("the help of %q describes the command in %d characters, want at most 300", c.CommandPath(), n)
		}
		if n := examples(c.Example); n < 1 || n > 3 {
			t.Errorf("the help of %q has %d examples, want 1 to 3", c.CommandPath(), n)
		}
		help := helpOf(t, c)
		for line := range strings.Lines(help) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > helpWidth {
				t.Errorf("the help of %q has a line of %d characters, want at most %d: %s", c.CommandPath(), n, helpWidth, line)
			}
		}
		if last := "\nMore: docs/commands/" + pageName(c) + " in the repository\n"; !strings.HasSuffix(help, last) {
			t.Errorf("the help of %q does not end with %q, want that line last", c.CommandPath(), last)
		}
	})
}

// examples counts the command lines in a text. A line that ends with a backslash continues on the next line.
func examples(text string) (n int) {
	continues := false
	for line := range strings.Lines(text) {
		if !continues {
			n++
		}
		continues = strings.HasSuffix(strings.TrimSpace(line), "\\")
	}
	return n
}

func helpOf(t *testing.T, c *cobra.Command) string {
	t.Helper()
	var out, errs strings.Builder
	Run(t.Context(), append(strings.Fields(c.CommandPath())[1:], "--help"), strings.NewReader(""), &out, &errs)
	if errs.Len() > 0 {
		t.Errorf("the help of %q printed %q to standard error, want nothing", c.CommandPath(), errs.String())
	}
	return out.String()
}

// No example in a help text loses messages.
func TestExamplesLoseNoMessages(t *testing.T) {
	everyCommand(func(c *cobra.Command) {
		for _, word := range []string{"--force", "consume --queue orders"} {
			if strings.Contains(c.Example, word) {
				t.Errorf("the examples of %s are %s, want no %q in them", c.CommandPath(), c.Example, word)
			}
		}
	})
}

// No command's help contains a meaningless default or the name of a Go type.
func TestHelp(t *testing.T) {
	everyCommand(func(c *cobra.Command) {
		_, flags, ok := strings.Cut(helpOf(t, c), "\nFlags:\n")
		if !ok {
			t.Errorf("the help of %q contains no flags, want a section Flags", c.CommandPath())
		}
		for _, bad := range []string{"(default 0", "(default [])", "stringArray"} {
			if strings.Contains(flags, bad) {
				t.Errorf("the help of %q contains %q, want no meaningless defaults or Go types", c.CommandPath(), bad)
			}
		}
	})
}
