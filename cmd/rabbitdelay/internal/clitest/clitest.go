package clitest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/cli"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
)

// answering is the name of the environment variable that shortens how long the tested program waits for a database.
const answering = "CLITEST_ANSWERING"

// Main runs the tests of a package that has scripts. Call it from TestMain. Scripts run the test binary itself as the
// program rabbitdelay, so that it need not be built separately and its coverage is measured.
func Main(m *testing.M) {
	testscript.Main(isolated{m}, map[string]func(){"rabbitdelay": rabbitdelay})
}

// rabbitdelay runs the program. The test binary calls it when a script executes the command rabbitdelay.
func rabbitdelay() {
	if text := os.Getenv(answering); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		app.Answering = d
	}
	code := program.Main(cli.Run)
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "the command left goroutines behind:", err)
		code = leaked
	}
	os.Exit(code)
}

// leaked is the exit code of a command that left goroutines running. The program itself never uses this code.
const leaked = 99

// isolated runs tests without the settings in this machine's environment, and fails if goroutines are left running.
type isolated struct{ m *testing.M }

// Run implements the interface that testscript.Main requires.
func (i isolated) Run() int {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "AMQP_URL" || strings.HasPrefix(name, "RABBITDELAY_") {
			_ = os.Unsetenv(name)
		}
	}
	code := i.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "the tests left goroutines behind:", err)
			code = 1
		}
	}
	return code
}

// Ran is the result of one run of the program.
type Ran struct {
	Code           int
	Stdout, Stderr string
}

func (r Ran) String() string {
	return fmt.Sprintf("exit %d\nstandard output:\n%sstandard error:\n%s", r.Code, r.Stdout, r.Stderr)
}

// Run runs the program in this process with empty standard input.
func Run(ctx context.Context, args ...string) Ran {
	return RunWith(ctx, "", args...)
}

// RunWith runs the program in this process with the given standard input.
func RunWith(ctx context.Context, stdin string, args ...string) Ran {
	var out, errs strings.Builder
	code := cli.Run(ctx, args, strings.NewReader(stdin), &out, &errs)
	return Ran{code, out.String(), errs.String()}
}

// RunTo runs the program in this process with the given output writers, and returns the exit code.
func RunTo(ctx context.Context, stdout, stderr io.Writer, args ...string) (code int) {
	return cli.Run(ctx, args, strings.NewReader(""), stdout, stderr)
}

// Buffer is an output that can be read while the program is writing it.
type Buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns the text that has been written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// FreeAddress returns an address on the loopback interface at which no program is listening.
func FreeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Expect runs the program in this process and fails the test unless it exits with code.
func Expect(t *testing.T, code int, args ...string) Ran {
	t.Helper()
	got := Run(t.Context(), args...)
	if got.Code != code {
		t.Fatalf("rabbitdelay %s: got %s\nwant exit code %d", strings.Join(args, " "), got, code)
	}
	return got
}

// NewDB creates a SQLite file, migrates it, and returns its URL.
func NewDB(t *testing.T) (url string) {
	t.Helper()
	url = "sqlite:" + t.TempDir() + "/tasks.db"
	Expect(t, 0, "migrate", "--db", url)
	return url
}

// Await polls until ok returns true. It fails the test after a minute.
func Await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !poll(ok) {
		t.Fatalf("timed out after a minute while waiting for: %s", what)
	}
}

func poll(ok func() bool) bool {
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
