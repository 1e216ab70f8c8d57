package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
	_ "github.com/rabbitdelay/rabbitdelay/config/mysql"    // mysql://
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres" // postgres://
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"   // sqlite:
)

// Exit codes beside those that every program has.
const (
	exitToDo    = 2 // plan: there is something to do; requeue, plugin drain: messages stayed
	exitTimeout = 3 // consume: fewer messages came than were wanted
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
	version := false
	root := &cobra.Command{
		Use:   "rabbitdelay",
		Short: "Delayed messages on a stock RabbitMQ",
		Long: `rabbitdelay delays messages on a stock RabbitMQ: it plans and applies the
topology, sends messages with a delay and consumes them.

Settings come from, in this order: flags; environment variables such as
RABBITDELAY_BROKER_URL or RABBITDELAY_DELAY_STRATEGY; the YAML file; defaults.
The broker's default is AMQP_URL; none is guessed.

"rabbitdelay settings" lists them all. An empty environment variable counts as not
set; an empty flag is an error.

Results go to standard output, everything else to standard error; with --json both
are JSON, one object a line: errors as {"error":"…"}, notes as {"note":"…"}.

Exit codes:
    0  success
    1  error, wrong usage included; doctor: findings (see --fail-on); trace: nothing is known
    2  plan: something to create, or not everything could be seen; doctor: not everything could be checked;
       requeue, plugin drain: messages stayed; status, trace, plugin status: not everything could be seen
    3  consume: fewer messages came than were wanted
  130  Ctrl-C`,
		Example: `  rabbitdelay plan
  rabbitdelay send --queue try.me --delay 5s --body hello
  rabbitdelay consume --queue try.me --count 1 --timeout 1m
  rabbitdelay doctor -f delays.yaml`,
		RunE: func(c *cobra.Command, _ []string) error {
			if version {
				return a.printVersion()
			}
			return c.Help()
		},
	}
	p.Flags(root)
	check := root.PersistentPreRunE
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if c.Name() == "doctor" {
			return blind(err)
		}
		return err
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.AddCommand(
		a.planCommand(), a.applyCommand(), a.destroyCommand(), a.retireCommand(), a.requeueCommand(), a.discardCommand(), a.tasksCommand(), a.schedulesCommand(), a.serveCommand(), a.usersCommand(), a.bridgeCommand(),
		a.sendCommand(), a.consumeCommand(), a.peekCommand(), a.statusCommand(), a.traceCommand(), a.migrateCommand(), a.doctorCommand(),
		a.pluginCommand(), a.validateCommand(), a.exportCommand(), a.schemaCommand(), a.settingsCommand(), a.versionCommand(),
	)
	return root
}

// openWith connects a client by the settings.
func (a *app) openWith(ctx context.Context, c *config.Config, s amqpx.Strategy) (*amqpx.Client, error) {
	cfg, err := c.Client(s, a.Logger())
	if err != nil {
		return nil, err
	}
	return amqpx.Open(ctx, cfg)
}
