package cli_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/cli"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
)

// expectInterrupted runs a command, and fails the test unless it exits as after Ctrl-C.
func expectInterrupted(ctx context.Context, t *testing.T, stdin io.Reader, args ...string) {
	t.Helper()
	var out, errs strings.Builder
	code := cli.Run(ctx, args, stdin, &out, &errs)
	if code != program.ExitInterrupt {
		t.Errorf("%s: exit code %d, want %d", strings.Join(args, " "), code, program.ExitInterrupt)
	}
	if got := errs.String(); got != "rabbitdelay: interrupted\n" {
		t.Errorf(`%s: standard error is %q, want "rabbitdelay: interrupted"`, strings.Join(args, " "), got)
	}
}

func TestInterruptedBeforeStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	args := []string{"send", "--queue", "q", "--url", "amqp://127.0.0.1:1/", "--log-level", "error"}
	expectInterrupted(ctx, t, strings.NewReader(""), args...)
}

// silent is an input without data. Its first Read closes begun, and Read returns when the test ends.
type silent struct{ begun, end chan struct{} }

func (s silent) Read([]byte) (int, error) {
	close(s.begun)
	<-s.end
	return 0, io.EOF
}

// Ctrl-C interrupts a command that is waiting for input.
func TestInterruptedInput(t *testing.T) {
	users := filepath.Join(t.TempDir(), "users.yaml")
	for _, args := range []string{
		"users add anna --role viewer --users " + users,
		"send --queue q --body -",
		"tasks add --queue q --db sqlite:x.db --body -",
		"schedules add s --every 1m --queue q --db sqlite:x.db --body -",
	} {
		in := silent{make(chan struct{}), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-in.begun; cancel() }()
		expectInterrupted(ctx, t, in, strings.Fields(args)...)
		close(in.end)
	}
}

// Ctrl-C interrupts a command that is waiting for the broker's handshake.
func TestInterruptedHandshake(t *testing.T) {
	t.Setenv("RABBITDELAY_BROKER_DIAL_TIMEOUT", "1h")
	for _, command := range []string{"plan", "send --queue q", "consume --queue q"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			_, _ = conn.Read(make([]byte, 8)) // the client waits for an answer
		}()
		args := append(strings.Fields(command), "--url", "amqp://"+l.Addr().String()+"/")
		expectInterrupted(ctx, t, strings.NewReader(""), args...)
		_ = l.Close()
	}
}
