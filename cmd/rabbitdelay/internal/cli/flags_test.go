package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

// No command has a flag with the name of a global flag, because it would hide that flag. The help of a flag names each
// accepted value as a separate word.
func TestFlags(t *testing.T) {
	visited := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		visited++
		own := func(f *pflag.Flag) {
			for _, word := range f.Annotations["rabbitdelay_choices"] {
				if before, _, _ := strings.Cut(f.Usage, word); before != "" && !strings.HasSuffix(before, " ") {
					t.Errorf("--%s of %s: the usage is %q, want every choice as a separate word", f.Name, c.CommandPath(), f.Usage)
				}
			}
			c.VisitParents(func(parent *cobra.Command) {
				if parent.PersistentFlags().Lookup(f.Name) != nil {
					t.Errorf("the flag --%s of %s hides the global flag of %s, want another name", f.Name, c.CommandPath(), parent.CommandPath())
				}
			})
		}
		c.LocalNonPersistentFlags().VisitAll(own)
		c.PersistentFlags().VisitAll(own)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	terminal, end := term.New(t.Context(), strings.NewReader(""), io.Discard, io.Discard)
	defer end()
	visit(command(program.New(terminal)))
	if visited < 40 {
		t.Errorf("visited %d commands, want 40 or more", visited)
	}
}
