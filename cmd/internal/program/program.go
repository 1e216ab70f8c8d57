// Package program has what the programs rabbitdelay and rabbitdelay-lab share: the
// flags of all their commands, the settings that these lead to, and how a run
// ends. It knows no command, and neither broker nor database.
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

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// Exit codes of every program. Usage errors are errors.
const (
	ExitOK        = 0
	ExitError     = 1
	ExitInterrupt = 130 // a signal came first
)

// Program is one run.
type Program struct {
	*term.Terminal

	LogLevel string // --log-level

	file  string
	flags *pflag.FlagSet // of the command
}

// New returns a program that reads its settings from flags and prints to t.
func New(t *term.Terminal) *Program {
	return &Program{Terminal: t, flags: &pflag.FlagSet{}}
}

// Main is a process's: it calls run, which the first signal interrupts, and
// returns the exit code. A second signal ends the process at once.
func Main(run func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// Run executes a command line and returns the exit code. Output goes to stdout;
// errors, logs and progress to stderr.
func Run(ctx context.Context, root func(*Program) *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	t, end := term.New(ctx, stdin, stdout, stderr)
	defer end()
	c := root(New(t))
	finish(c)
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
		t.JSON = t.JSON || slices.Contains(args, "--json") // a wrong flag may stand before it
		t.PrintError(err)
	}
	return code
}

// StatusError is an error that ends the program with a code of its own. Err is printed unless it is nil.
type StatusError struct {
	Code int
	Err  error
}

func (s *StatusError) Error() string { return fmt.Sprintf("exit status %d", s.Code) }

// Unwrap returns Err.
func (s *StatusError) Unwrap() error { return s.Err }

// Exit ends the program with a code; what happened has been printed.
func Exit(code int) error {
	if code == ExitOK {
		return nil
	}
	return &StatusError{Code: code}
}

// Load reads the settings. Flags override everything; defaults are those of this command.
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
				p.Notef("note: %s is set and empty, which counts as not set", name)
			}
		}
	}
	file := p.file
	if !p.Given("file") {
		file = os.Getenv(config.FileVariable)
	}
	return config.Load(config.Source{File: file, Overrides: overrides, Defaults: defaults})
}

// LogBeginning has the logs say when a process began that runs for weeks, unless --log-level was given.
func (p *Program) LogBeginning() {
	if !p.Given("log-level") {
		p.LogLevel = "info"
	}
}

// Logger writes to standard error.
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

// Flags adds the flags of all commands to the root of a program, and their checks.
func (p *Program) Flags(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return p.check(c) }
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		hint := ""
		if name, unknown := strings.CutPrefix(err.Error(), "unknown flag: "); unknown {
			var names []string
			c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
			hint = config.DidYouMean(name, names)
		}
		if number, ok := errors.AsType[*strconv.NumError](err); ok { // without the name of a function
			err = errors.New(strings.Replace(err.Error(), number.Error(), number.Err.Error(), 1))
		}
		return fmt.Errorf("%w; see %s --help%s", err, c.CommandPath(), hint)
	})
	f := root.PersistentFlags()
	Setting(f, "broker.url", "url", "broker, amqp://user:password@host:5672/vhost or amqps://…")
	Setting(f, "delay.strategy", "strategy", "bucket (default), ttl, plugin, native or auto")
	Setting(f, "delay.queue_type", "queue-type", "quorum (default) or classic")
	f.StringVarP(&p.file, "file", "f", "", "YAML file with settings and topology; default: the one named by RABBITDELAY_FILE")
	f.BoolVar(&p.JSON, "json", false, "print JSON, the result as one line at the end")
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

// Annotations of flags.
const (
	choices = "rabbitdelay_choices" // the words of which the flag takes one
	setting = "rabbitdelay_setting" // the path of the setting that it overrides
)

// Setting adds a flag that overrides the setting at path, and returns its value.
func Setting(f *pflag.FlagSet, path, name, usage string) *string {
	value := f.String(name, "", usage)
	_ = f.SetAnnotation(name, setting, []string{path}) // the flag exists
	return value
}

// Choice adds a flag that takes one of words, which its help lists after usage and
// a shell completes. Other words are refused before the command runs.
func Choice(c *cobra.Command, target *string, name, value, usage string, words ...string) {
	if usage != "" {
		usage += ": "
	}
	f := c.Flags()
	f.StringVar(target, name, value, usage+oneOf(words))
	_ = f.SetAnnotation(name, choices, words) // the flag exists
	complete(c, name, words)
}

// complete has a shell complete a flag's words.
func complete(c *cobra.Command, name string, words []string) {
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Exclusive returns an error if two flags were given that exclude each other.
func (p *Program) Exclusive(a, b string) error {
	if p.Given(a) && p.Given(b) {
		return fmt.Errorf("both --%s and --%s; give one", a, b)
	}
	return nil
}

// Given reports whether a flag of the command was given.
func (p *Program) Given(flag string) bool { return p.flags.Changed(flag) }

// mayBeEmpty are the flags of which empty text is a value.
var mayBeEmpty = []string{"body", "routing-key"}

// check runs before every command. Flags that were given empty or as blanks are errors, most often
// because a variable in a script is not set: their defaults would be a surprise.
func (p *Program) check(c *cobra.Command) error {
	p.flags = c.Flags()
	var empty, wrong error
	p.flags.Visit(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		nothing := blank(f.Value.String()) || ok && !slices.ContainsFunc(list.GetSlice(), func(s string) bool { return !blank(s) })
		if nothing && empty == nil && !slices.Contains(mayBeEmpty, f.Name) {
			empty = fmt.Errorf("--%s is empty, perhaps from an unset variable; give a value, or leave the flag out", f.Name)
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

// finish completes a command and those below it: without Args they take no arguments, a group prints its
// help, and the help shows no default of 0s, which means nothing, or what the usage of the flag names.
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

// AtMostOneArg is cobra.MaximumNArgs(1) with a hint.
func AtMostOneArg(c *cobra.Command, args []string) error {
	if len(args) <= 1 {
		return nil
	}
	return fmt.Errorf("unexpected argument %q; one is enough; see %s --help", yamldoc.Clip(args[1]), c.CommandPath())
}

// NoArgs is cobra.NoArgs with a hint.
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
	return fmt.Errorf("unknown command %q; see %s --help%s", yamldoc.Clip(args[0]), c.CommandPath(), config.DidYouMean(args[0], names))
}
