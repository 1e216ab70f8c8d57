package cli

import (
	"cmp"
	"context"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/layout"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/messages"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/schedules"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/serve"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/tasks"
	"github.com/rabbitdelay/rabbitdelay/config"
	_ "github.com/rabbitdelay/rabbitdelay/config/mysql"    // mysql://
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres" // postgres://
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"   // sqlite:
)

// Run executes the command line and returns the process's exit code. Results go to stdout, and errors, logs and
// progress go to stderr.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return program.Run(ctx, command, args, stdin, stdout, stderr)
}

func command(p *program.Program) *cobra.Command {
	a := &app.App{Program: p, Version: readBuild().Version}
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
are JSON, one object a line: errors as {"error":"…"}, notes as {"note":"…"}. What
schema and export print is a document over many lines.

Exit codes:
    0  success
    1  error, wrong usage included; doctor: findings (see --fail-on);
       trace: nothing is known
    2  plan: something to create; requeue, discard, plugin drain: messages stayed;
       plan, doctor, status, trace, plugin status: not everything could be seen
    3  consume: fewer messages came than were wanted
  130  Ctrl-C`,
		Example: `  rabbitdelay plan
  rabbitdelay send --queue try.me --delay 5s --body hello
  rabbitdelay consume --queue try.me --count 1 --timeout 1m
  rabbitdelay doctor -f delays.yaml`,
		RunE: func(c *cobra.Command, _ []string) error {
			if version {
				return printVersion(a)
			}
			return c.Help()
		},
	}
	p.Flags(root)
	root.Flags().BoolVar(&version, "version", false, "print the version")
	for _, act := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Messages:", []*cobra.Command{
			messages.SendCommand(a), messages.ConsumeCommand(a), messages.PeekCommand(a), messages.ErrorsCommand(a), messages.RequeueCommand(a), messages.DiscardCommand(a), messages.TraceCommand(a),
		}},
		{"Tasks of a database:", []*cobra.Command{tasks.Command(a), schedules.Command(a), tasks.MigrateCommand(a)}},
		{"The broker:", []*cobra.Command{
			layout.PlanCommand(a), layout.ApplyCommand(a), layout.DestroyCommand(a), layout.RetireCommand(a), layout.StatusCommand(a), layout.DoctorCommand(a),
		}},
		{"Services:", []*cobra.Command{serve.Command(a), serve.HealthCommand(a), serve.UsersCommand(a), plugin.BridgeCommand(a)}},
		{"The plugin:", []*cobra.Command{plugin.Command(a)}},
		{"Settings and the file:", []*cobra.Command{
			settingsCommand(a), layout.ValidateCommand(a), layout.ExportCommand(a), layout.SchemaCommand(a), versionCommand(a),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: act.title, Title: act.title})
		for _, c := range act.commands {
			c.GroupID = act.title
			root.AddCommand(c)
		}
	}
	return root
}

func settingsCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "settings",
		Short: "List all settings with their defaults and environment variables",
		Long: `settings lists all settings: path in the YAML file, type, default, environment
variable and meaning. Lists in the environment are separated by commas. The
environment overrides the file; an empty variable counts as not set. The flags
--url, --strategy, --queue-type and --db set broker.url, delay.strategy,
delay.queue_type and database.url.

The file's other sections have no variables: exchanges, queues, bindings and
destinations describe objects on the broker, schedules recurring tasks.`,
		Example: `  rabbitdelay settings
  rabbitdelay settings --json | jq -r .variable`,
		RunE: func(*cobra.Command, []string) error {
			_, err := term.List(a.Terminal, nil, term.Each(config.Settings()), func(s config.Setting) (any, []string) { // two lines for each setting
				return s, []string{s.Path, s.Type, "default " + s.Default + "\n  " + cmp.Or(s.Variable, "(file only)"), "", s.Meaning}
			})
			return err
		},
	}
}

// version is set by the linker for releases: -X …/cli.version=v1.2.3.
var version string

type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		b.Version = cmp.Or(b.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	b.Version = cmp.Or(b.Version, "(devel)")
	return b
}

func versionCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  rabbitdelay version --json
  rabbitdelay --version`,
		RunE: func(*cobra.Command, []string) error { return printVersion(a) },
	}
}

func printVersion(a *app.App) error {
	b := readBuild()
	revision := ""
	if len(b.Revision) >= 12 {
		revision = " (" + b.Revision[:12] + ")"
	}
	return a.Show(b, "rabbitdelay %s%s, %s, %s\n", b.Version, revision, b.Go, b.Platform)
}
