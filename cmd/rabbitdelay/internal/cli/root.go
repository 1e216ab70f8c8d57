package cli

import (
	"cmp"
	"context"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/layout"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/messages"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/plugin"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/schedules"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/serve"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/tasks"
	"github.com/rabbitdelay/rabbitdelay/config"
	_ "github.com/rabbitdelay/rabbitdelay/config/mysql"    // mysql://
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres" // postgres://
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"   // sqlite:
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
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
		Long: `For developers and operators of services that delay messages with rabbitdelay:
try out delays, manage messages and tasks, and change the broker's objects.`,
		Example: `  rabbitdelay send --queue try.me --delay 5s --body hello
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
	shortHelp(root)
	root.Flags().BoolVar(&version, "version", false, "print the version")
	for _, act := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Messages:", []*cobra.Command{
			messages.SendCommand(a), messages.ConsumeCommand(a), messages.PeekCommand(a), messages.ErrorsCommand(a), messages.RequeueCommand(a), messages.DiscardCommand(a), messages.TraceCommand(a),
		}},
		{"Tasks in a database:", []*cobra.Command{tasks.Command(a), schedules.Command(a), tasks.MigrateCommand(a)}},
		{"The broker:", []*cobra.Command{
			layout.PlanCommand(a), layout.ApplyCommand(a), layout.DestroyCommand(a), layout.RetireCommand(a), layout.StatusCommand(a), layout.DoctorCommand(a),
		}},
		{"Services:", []*cobra.Command{serve.Command(a), serve.HealthCommand(a), serve.UsersCommand(a)}},
		{"The x-delayed-message plugin:", []*cobra.Command{plugin.Command(a), plugin.BridgeCommand(a)}},
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
		Short: "List all settings with defaults and variables",
		Long: `List all settings: their paths in the YAML file, types, defaults, environment
variables and meanings.`,
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
