// Package lab is the command rabbitdelay-lab, callable in-process.
package lab

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

// app is one run of the command.
type app struct{ *program.Program }

// Run executes the command line and returns the process's exit code. Output goes
// to stdout; errors, logs and progress to stderr.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return program.Run(ctx, command, args, stdin, stdout, stderr)
}

func command(p *program.Program) *cobra.Command {
	a := &app{p}
	root := &cobra.Command{
		Use:   "rabbitdelay-lab",
		Short: "Show and measure delayed messages on a stock RabbitMQ",
		Long: `rabbitdelay-lab shows in a demo that nothing is early, lost or done twice, and
measures how fast and how late messages are. Both use the broker at --url or
AMQP_URL. Without either they start a broker and stop it at the end.

Settings come from flags, the environment, the YAML file and defaults, as those of
rabbitdelay do; "rabbitdelay settings" lists them.

Results go to standard output, everything else to standard error; with --json both
are JSON, one object a line: errors as {"error":"…"}, notes as {"note":"…"}.

Exit codes:
    0  success
    1  error, wrong usage included; demo: a promise was broken
  130  Ctrl-C`,
		Example: `  rabbitdelay-lab demo
  rabbitdelay-lab bench --quick`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	p.Flags(root)
	root.AddCommand(a.demoCommand(), a.benchCommand())
	return root
}
