package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	version := false
	root := &cobra.Command{
		Use:   "rabbitdelay",
		Short: "Delayed messages on a stock RabbitMQ",
		Long: `rabbitdelay delays messages on a stock RabbitMQ: it plans and applies the
topology, sends messages with a delay, consumes them, and shows in a demo that
nothing is early, lost or done twice.

Settings come from, in this order: flags; environment variables such as
RABBITDELAY_BROKER_URL or RABBITDELAY_DELAY_STRATEGY; the YAML file; defaults.
The broker's default is AMQP_URL, else amqp://guest:guest@127.0.0.1:5672/.

"rabbitdelay settings" lists them all. An empty environment variable counts as not
set; an empty flag is an error.

Results go to standard output, everything else to standard error; with --json both
are JSON, an object a line: an error {"error":"…"}, what is going on {"note":"…"}.

Exit codes:
    0  success
    1  error, wrong usage included; doctor: findings
    2  plan: something to create, or not all could be seen; doctor: it could not look
    3  consume: fewer messages came than were wanted
  130  Ctrl-C`,
		Example: `  rabbitdelay plan
  rabbitdelay send --queue try.me --delay 5s --body hello
  rabbitdelay consume --queue try.me --count 1 --timeout 1m
  rabbitdelay doctor -f delays.yaml`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if version {
				return a.printVersion()
			}
			return c.Help()
		},
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			a.flags = c.Flags().Changed
			err := checkFlags(c)
			if _, lerr := zapcore.ParseLevel(a.logLevel); lerr != nil && err == nil {
				err = fmt.Errorf("--log-level: %q; expected debug, info, warn or error", a.logLevel)
			}
			if c.Name() == "doctor" {
				return blind(err)
			}
			return err
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
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
		return fmt.Errorf("%w; see %s --help%s", err, c.CommandPath(), nearFlag(c, err))
	})
	root.AddCommand(
		a.planCommand(), a.applyCommand(), a.destroyCommand(), a.tasksCommand(), a.relayCommand(),
		a.sendCommand(), a.consumeCommand(), a.migrateCommand(), a.demoCommand(), a.benchCommand(), a.doctorCommand(), a.settingsCommand(), a.versionCommand(),
	)
	return root
}

// noArgs is cobra.NoArgs with a hint.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !c.HasSubCommands() {
		return fmt.Errorf("unexpected argument %q; see %s --help", clip(args[0]), c.CommandPath())
	}
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return fmt.Errorf("unknown command %q; see %s --help%s", clip(args[0]), c.CommandPath(), config.DidYouMean(args[0], names))
}

// clip leaves out what may hold a password: a URL without the --url before it.
func clip(arg string) string {
	if strings.Contains(arg, "://") {
		return "(a URL)"
	}
	return arg
}

// nearFlag says which flag may have been meant.
func nearFlag(c *cobra.Command, err error) string {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: ")
	if !ok {
		return ""
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return config.DidYouMean(name, names)
}

// mayBeEmpty are the flags of which empty text is a value.
var mayBeEmpty = []string{"body", "routing-key"}

// checkFlags finds flags that were given empty or as blanks, most often because a variable in
// a script is not set: their defaults would be a surprise.
func checkFlags(c *cobra.Command) error {
	var empty error
	c.Flags().Visit(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		nothing := blank(f.Value.String()) || ok && !slices.ContainsFunc(list.GetSlice(), func(s string) bool { return !blank(s) })
		if nothing && empty == nil && !slices.Contains(mayBeEmpty, f.Name) {
			empty = fmt.Errorf("--%s is empty; is a variable not set? Give a value, or leave the flag out", f.Name)
		}
	})
	return empty
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

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
	if _, ok := overrides["broker.url"]; !ok {
		for _, name := range []string{"RABBITDELAY_BROKER_URL", "AMQP_URL"} {
			if value, set := os.LookupEnv(name); set && value == "" {
				a.notef("note: %s is set and empty, which counts as not set", name)
			}
		}
	}
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
	s, err := c.Strategy(ctx, a.logger())
	if err != nil {
		return nil, err
	}
	return a.openWith(ctx, c, s)
}

func (a *app) openWith(ctx context.Context, c *config.Config, s amqpx.Strategy) (*amqpx.Client, error) {
	cfg, err := c.Client(s, a.logger())
	if err != nil {
		return nil, err
	}
	return amqpx.Open(ctx, cfg)
}

// oneLine joins the lines of a joined error.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }), "; ")
}
