// Package program has what the programs rabbitdelay and rabbitdelay-lab share: the
// flags of all their commands (flags.go), the settings that these lead to, and how a run
// ends (program.go). It knows no command, and neither broker nor database.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/config"
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

// StatusError is an error that ends the program with a code of its own. Err is printed
// unless it is nil.
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

// LogBeginning has the logs say when a process began that runs for weeks, unless
// --log-level was given.
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
	encoder := zapcore.NewConsoleEncoder(enc)
	if p.JSON {
		encoder = zapcore.NewJSONEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(p.Stderr)), level))
}
