// Package program implements what the programs rabbitdelay and integration/lab have in common: the flags of all their
// commands, loading the settings, and exit codes. It is independent of the individual commands, and uses neither a
// broker nor a database.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Exit codes of every program. A usage error exits with ExitError.
const (
	ExitOK        = 0
	ExitError     = 1
	ExitInterrupt = 130 // interrupted by a signal
)

// Program contains the flags and the terminal of one run.
type Program struct {
	*term.Terminal

	LogLevel string // --log-level

	file  string
	flags *pflag.FlagSet // flags of the command that runs
}

// New returns a Program that prints to t.
func New(t *term.Terminal) *Program {
	return &Program{Terminal: t, flags: &pflag.FlagSet{}}
}

// File returns the path of the settings file that --file names, or "".
func (p *Program) File() string { return p.file }

// Main runs a process. It calls run with a context that the first signal cancels, and returns the exit code. A second
// signal terminates the process immediately.
func Main(run func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// Run executes a command line and returns the exit code. Results go to stdout, and errors, logs and progress go to
// stderr.
func Run(ctx context.Context, root func(*Program) *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	t, end := term.New(ctx, stdin, stdout, stderr)
	defer end()
	c := Command(t, root)
	t.Name = c.Name()
	c.SetArgs(args)
	c.SetIn(stdin)
	c.SetOut(t)
	c.SetErr(t.Stderr)
	err := c.ExecuteContext(ctx)
	if err == nil {
		err = t.Lost()
	}
	if err == nil {
		return ExitOK
	}
	code := ExitError
	if status, ok := errors.AsType[*StatusError](err); ok {
		code, err = status.Code, status.Err
	} else if ctx.Err() != nil {
		code = ExitInterrupt
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted")
		}
	}
	if err != nil {
		// If an invalid flag precedes --json, parsing ended before --json was reached.
		t.JSON = t.JSON || slices.Contains(args, "--json")
		t.PrintError(err)
	}
	return code
}

// Command returns the root command of a program as Run executes it, with the defaults of finish.
func Command(t *term.Terminal, root func(*Program) *cobra.Command) *cobra.Command {
	c := root(New(t))
	finish(c)
	return c
}

// StatusError is an error with its own exit code. Err is printed unless it is nil.
type StatusError struct {
	Code int
	Err  error
}

func (s *StatusError) Error() string { return fmt.Sprintf("exit status %d", s.Code) }

// Unwrap returns Err.
func (s *StatusError) Unwrap() error { return s.Err }

// Exit returns an error that makes the program exit with a code without printing anything. It returns nil for ExitOK.
func Exit(code int) error {
	if code == ExitOK {
		return nil
	}
	return &StatusError{Code: code}
}

// Load reads the settings. Flags override all other sources. The parameter defaults contains the command's own
// defaults.
func (p *Program) Load(defaults map[string]string) (*config.Config, error) {
	overrides := map[string]config.Override{}
	p.flags.Visit(func(f *pflag.Flag) {
		for _, path := range f.Annotations[setting] {
			overrides[path] = config.Override{Value: f.Value.String(), Origin: "--" + f.Name}
		}
	})
	if _, ok := overrides["broker.url"]; !ok {
		for _, name := range []string{"RABBITDELAY_BROKER_URL", "AMQP_URL"} {
			if value, set := os.LookupEnv(name); set && value == "" {
				p.Notef("note: %s is set but empty, which counts as not set", name)
			}
		}
	}
	file := p.file
	if !p.Given("file") {
		file = os.Getenv(config.FileVariable)
	}
	return config.Load(config.Source{File: file, Overrides: overrides, Defaults: defaults})
}

// LogBeginning lowers the minimum log level to info unless --log-level was given. Long-running commands call it so that
// the log shows when they started.
func (p *Program) LogBeginning() {
	if !p.Given("log-level") {
		p.LogLevel = "info"
	}
}

// Logger returns a logger that writes to standard error.
func (p *Program) Logger() *zap.Logger {
	level, err := zapcore.ParseLevel(p.LogLevel)
	if err != nil {
		level = zapcore.WarnLevel
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewJSONEncoder(enc)
	if !p.JSON {
		enc.EncodeDuration = func(d time.Duration, to zapcore.PrimitiveArrayEncoder) { to.AppendString(topology.FormatDuration(d)) }
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(p.Stderr)), level))
}

// Flags adds the flags that every command of a program has, and their checks, to the root command.
func (p *Program) Flags(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return p.check(c) }
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		hint := ""
		if name, unknown := strings.CutPrefix(err.Error(), "unknown flag: "); unknown {
			var names []string
			c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
			hint = naming.DidYouMean(name, names)
		}
		if number, ok := errors.AsType[*strconv.NumError](err); ok { // omit the name of the Go function
			err = errors.New(strings.Replace(err.Error(), number.Error(), number.Err.Error(), 1))
		}
		return fmt.Errorf("%w; see %s --help%s", err, c.CommandPath(), hint)
	})
	f := root.PersistentFlags()
	Setting(f, "broker.url", "url", "broker, amqp://user:password@host:5672/vhost or amqps://…")
	Setting(f, "delay.strategy", "strategy", "bucket (default), ttl, plugin, native or auto")
	Setting(f, "delay.queue_type", "queue-type", "quorum (default) or classic")
	f.StringVarP(&p.file, "file", "f", "", "YAML file with settings and topology; default: the one named by RABBITDELAY_FILE")
	f.BoolVar(&p.JSON, "json", false, "print JSON, with the result as one line at the end")
	f.BoolVarP(&p.Quiet, "quiet", "q", false, "print the result only")
	f.StringVar(&p.LogLevel, "log-level", "warn", "debug, info, warn or error; logs go to standard error")
	for name, values := range map[string][]string{
		"strategy":   {config.StrategyBucket, config.StrategyTTL, config.StrategyPlugin, config.StrategyNative, config.StrategyAuto},
		"queue-type": {"quorum", "classic"},
		"log-level":  {"debug", "info", "warn", "error"},
	} {
		complete(root, name, values)
	}
}

// These are the keys of the annotations that this package adds to flags.
const (
	choices = "rabbitdelay_choices" // the words that the flag accepts
	setting = "rabbitdelay_setting" // the path of the setting that the flag overrides
)

// Setting adds a flag that overrides the setting at path, and returns the flag's value.
func Setting(f *pflag.FlagSet, path, name, usage string) *string {
	value := f.String(name, "", usage)
	_ = f.SetAnnotation(name, setting, []string{path}) // cannot fail, because the flag exists
	return value
}

// Choice adds a flag that accepts only the given words. The help lists the words after the usage text, and shells
// complete them. Another value is rejected before the command runs.
func Choice(c *cobra.Command, target *string, name, value, usage string, words ...string) {
	if usage != "" {
		usage += ": "
	}
	f := c.Flags()
	f.StringVar(target, name, value, usage+oneOf(words))
	_ = f.SetAnnotation(name, choices, words) // cannot fail, because the flag exists
	complete(c, name, words)
}

// complete registers the words that a shell suggests for a flag.
func complete(c *cobra.Command, name string, words []string) {
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // cannot fail, because the flag exists
}

func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Exclusive returns an error if both of two mutually exclusive flags were given.
func (p *Program) Exclusive(a, b string) error {
	if p.Given(a) && p.Given(b) {
		return fmt.Errorf("--%s and --%s cannot be combined; give only one of them", a, b)
	}
	return nil
}

// Given reports whether the command line contains the flag.
func (p *Program) Given(flag string) bool { return p.flags.Changed(flag) }

// mayBeEmpty lists the flags for which the empty string is a valid value.
var mayBeEmpty = []string{"body", "routing-key"}

// check runs before every command. It rejects values that are not among the choices of a flag, unknown log levels, and
// flags with an empty or blank value. A blank value usually comes from an unset variable in a script, so check does not
// replace it with the flag's default.
func (p *Program) check(c *cobra.Command) error {
	p.flags = c.Flags()
	var empty, wrong error
	p.flags.Visit(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		nothing := blank(f.Value.String()) || ok && !slices.ContainsFunc(list.GetSlice(), func(s string) bool { return !blank(s) })
		if nothing && empty == nil && !slices.Contains(mayBeEmpty, f.Name) {
			empty = fmt.Errorf("--%s is empty, perhaps because of an unset variable; give a value, or omit the flag", f.Name)
		}
		if words := f.Annotations[choices]; words != nil && wrong == nil && !slices.Contains(words, f.Value.String()) {
			wrong = fmt.Errorf("--%s: %q; expected %s", f.Name, f.Value, oneOf(words))
		}
	})
	if err := cmp.Or(empty, wrong); err != nil {
		return err
	}
	if _, err := zapcore.ParseLevel(p.LogLevel); err != nil {
		return fmt.Errorf("--log-level: %q; expected debug, info, warn or error", p.LogLevel)
	}
	return nil
}

// finish sets the defaults of a command and its subcommands. A command without Args accepts no arguments, and a group
// of commands prints its help. The help does not show a default of 0s, because the usage text of the flag explains what
// 0 means.
func finish(c *cobra.Command) {
	if c.Args == nil {
		c.Args = NoArgs
	}
	if c.RunE == nil {
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.DefValue == "0s" {
			f.DefValue = ""
		}
	})
	for _, sub := range c.Commands() {
		finish(sub)
	}
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// AtMostOneArg is cobra.MaximumNArgs(1) with a hint in its error.
func AtMostOneArg(c *cobra.Command, args []string) error {
	if len(args) <= 1 {
		return nil
	}
	return fmt.Errorf("unexpected argument %q; expected at most one; see %s --help", yamldoc.Clip(args[1]), c.CommandPath())
}

// NoArgs is cobra.NoArgs with a hint in its error.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !c.HasSubCommands() {
		return fmt.Errorf("unexpected argument %q; see %s --help", yamldoc.Clip(args[0]), c.CommandPath())
	}
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return fmt.Errorf("unknown command %q; see %s --help%s", yamldoc.Clip(args[0]), c.CommandPath(), naming.DidYouMean(args[0], names))
}
