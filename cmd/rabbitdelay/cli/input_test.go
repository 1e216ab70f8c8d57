package cli

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// silent is a terminal or a pipe into which nobody writes: begun is closed by the
// first read, and reads end with the test.
type silent struct{ begun, end chan struct{} }

func (s silent) Read([]byte) (int, error) {
	close(s.begun)
	<-s.end
	return 0, io.EOF
}

// Ctrl-C ends also what waits for its input.
func TestInterruptedInput(t *testing.T) {
	users := filepath.Join(t.TempDir(), "users.yaml")
	for _, args := range []string{
		"users add anna --role viewer --users " + users, "send --queue q --body -", "tasks add --queue q --db sqlite:x.db --body -",
		"schedules add s --every 1m --queue q --db sqlite:x.db --body -",
	} {
		in := silent{make(chan struct{}), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-in.begun; cancel() }()
		var out, errs strings.Builder
		if code := Run(ctx, strings.Fields(args), in, &out, &errs); code != 130 || errs.String() != "rabbitdelay: interrupted\n" {
			t.Errorf("%s: exit code %d, %s", args, code, errs.String())
		}
		close(in.end)
	}
}
