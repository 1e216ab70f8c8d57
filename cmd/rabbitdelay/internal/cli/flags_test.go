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

// No command has a flag with the name of a global flag, which it would hide. The help of a flag lists the accepted
// values separately from the flag's purpose.
func TestFlags(t *testing.T) {
	visited := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		visited++
		own := func(f *pflag.Flag) {
			for _, word := range f.Annotations["rabbitdelay_choices"] {
				if before, _, _ := strings.Cut(f.Usage, word); before != "" && !strings.HasSuffix(before, " ") {
					t.Errorf("--%s of %s: the usage %q names a choice only as a part of another word", f.Name, c.CommandPath(), f.Usage)
				}
			}
			c.VisitParents(func(parent *cobra.Command) {
				if parent.PersistentFlags().Lookup(f.Name) != nil {
					t.Errorf("the flag --%s of %s hides the flag of %s", f.Name, c.CommandPath(), parent.CommandPath())
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
		t.Errorf("checked %d commands, want at least 40", visited)
	}
}
