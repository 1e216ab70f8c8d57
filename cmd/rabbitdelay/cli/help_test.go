package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
)

// everyCommand calls f for each command of the program.
func everyCommand(f func(c *cobra.Command)) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		f(c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(command(program.New(&term.Terminal{})))
}

// Each command has an example that loses no messages.
func TestEveryCommandHasAnExample(t *testing.T) {
	everyCommand(func(c *cobra.Command) {
		if c.Example == "" && c.Name() != "help" && c.Name() != "completion" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, word := range []string{"--force", "consume --queue orders"} {
			if strings.Contains(c.Example, word) {
				t.Errorf("the example of %s loses messages: %s", c.CommandPath(), c.Example)
			}
		}
	})
}

// No command's help shows a default that says nothing, or Go's words for a type.
func TestHelp(t *testing.T) {
	everyCommand(func(c *cobra.Command) {
		var out, errs strings.Builder
		Run(t.Context(), append(strings.Fields(c.CommandPath())[1:], "--help"), strings.NewReader(""), &out, &errs)
		_, flags, ok := strings.Cut(out.String(), "\nFlags:\n")
		if !ok {
			t.Errorf("the help of %q has no flags: %s", c.CommandPath(), errs.String())
		}
		for _, bad := range []string{"(default 0", "(default [])", "stringArray"} {
			if strings.Contains(flags, bad) {
				t.Errorf("the help of %q has %q", c.CommandPath(), bad)
			}
		}
	})
}
