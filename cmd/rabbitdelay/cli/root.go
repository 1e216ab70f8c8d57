package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// Exit codes. Usage errors are errors.
const (
	exitOK        = 0
	exitError     = 1
	exitToDo      = 2   // plan: there is something to do
	exitTimeout   = 3   // consume: fewer messages came than were wanted
	exitInterrupt = 130 // a signal came first
)

// app is one run of the command.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	url, strategy, queueType, file string
	json, quiet                    bool
	logLevel                       string

	flags func(name string) bool // whether a flag was given
}

// Run executes the command line and returns the process's exit code. Output goes
// to stdout; errors, logs and progress to stderr.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	errs := &serialWriter{w: stderr}
	defer errs.end()
	a := &app{stdin: stdin, stdout: stdout, stderr: errs}
	root := a.command()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitError
	if status, ok := errors.AsType[*statusError](err); ok {
		code, err = status.code, status.err
	} else if ctx.Err() != nil {
		code = exitInterrupt
		if errors.Is(err, context.Canceled) {
			err = errInterrupted
		}
	}
	if err != nil {
		a.json = a.json || slices.Contains(args, "--json") // a wrong flag may stand before it
		a.printError(err)
	}
	return code
}

var errInterrupted = errors.New("interrupted")

// statusError ends the command with a code, and with an error to print unless it
// is nil.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string { return fmt.Sprintf("exit status %d", e.code) }
func (e *statusError) Unwrap() error { return e.err }

// exit ends the command with a code; what happened has been printed.
func exit(code int) error {
	if code == exitOK {
		return nil
	}
	return &statusError{code: code}
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "rabbitdelay",
		Short: "Delayed messages on a stock RabbitMQ",
		Long: `rabbitdelay delays messages on a stock RabbitMQ: it plans and applies the
topology, sends messages with a delay, consumes them, and shows in a demo that
nothing is early, lost or done twice.

Settings come from, in this order: flags; environment variables such as
RABBITDELAY_BROKER_URL or RABBITDELAY_DELAY_STRATEGY; the YAML file; defaults.
The broker's default is AMQP_URL, else amqp://guest:guest@127.0.0.1:5672/.

Results go to standard output, everything else to standard error. The exit code
is 0 for success, 1 for errors, wrong usage included, 130 after Ctrl-C; plan and
consume add codes of their own.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			a.flags = c.Flags().Changed
			_, err := zapcore.ParseLevel(a.logLevel)
			if err != nil {
				return fmt.Errorf("--log-level: %q; expected debug, info, warn or error", a.logLevel)
			}
			return nil
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.url, "url", "", "broker, amqp://user:password@host:5672/vhost or amqps://…")
	f.StringVar(&a.strategy, "strategy", "", "bucket (default), ttl, plugin or auto")
	f.StringVar(&a.queueType, "queue-type", "", "quorum (default) or classic")
	f.StringVarP(&a.file, "file", "f", "", "YAML file with settings and topology")
	f.BoolVar(&a.json, "json", false, "print JSON, the result as one line at the end")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print the result only")
	f.StringVar(&a.logLevel, "log-level", "warn", "debug, info, warn or error; logs go to standard error")
	for name, values := range map[string][]string{
		"strategy":   {config.StrategyBucket, config.StrategyTTL, config.StrategyPlugin, config.StrategyAuto},
		"queue-type": {"quorum", "classic"},
		"log-level":  {"debug", "info", "warn", "error"},
	} {
		_ = root.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flags exist
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, c.CommandPath())
	})
	root.AddCommand(
		a.planCommand(), a.applyCommand(), a.destroyCommand(), a.tasksCommand(), a.relayCommand(),
		a.sendCommand(), a.consumeCommand(), a.migrateCommand(), a.demoCommand(), a.benchCommand(), a.doctorCommand(), a.versionCommand(),
	)
	return root
}

// noArgs is cobra.NoArgs with a hint.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasParent() {
		return fmt.Errorf("unexpected argument %q; see %s --help", args[0], c.CommandPath())
	}
	return fmt.Errorf("unknown command %q; see %s --help", args[0], c.CommandPath())
}

// load reads the settings, of which flags win; more are further flags by setting,
// defaults those of one command.
func (a *app) load(more map[string]config.Override, defaults map[string]string) (*config.Config, error) {
	overrides := map[string]config.Override{}
	for _, o := range []struct{ path, flag, value string }{
		{"broker.url", "url", a.url}, {"delay.strategy", "strategy", a.strategy}, {"delay.queue_type", "queue-type", a.queueType},
	} {
		if a.flags(o.flag) {
			overrides[o.path] = config.Override{Value: o.value, Origin: "--" + o.flag}
		}
	}
	maps.Copy(overrides, more)
	return config.Load(config.Source{File: a.file, Overrides: overrides, Defaults: defaults})
}

// logger writes to standard error.
func (a *app) logger() *zap.Logger {
	level, err := zapcore.ParseLevel(a.logLevel)
	if err != nil {
		level = zapcore.WarnLevel
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewConsoleEncoder(enc)
	if a.json {
		encoder = zapcore.NewJSONEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(a.stderr)), level))
}

// open connects a client by the settings.
func (a *app) open(ctx context.Context, c *config.Config) (*amqpx.Client, error) {
	log := a.logger()
	s, err := c.Strategy(ctx, log)
	if err != nil {
		return nil, err
	}
	cfg, err := c.Client(s, log)
	if err != nil {
		return nil, err
	}
	return amqpx.Open(ctx, cfg)
}

// oneLine joins the lines of a joined error.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }), "; ")
}
