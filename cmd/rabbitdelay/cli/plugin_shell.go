package cli

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/drain"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
)

// maxComplaint is how much of what a command wrote to standard error is told.
const maxComplaint = 2000

// evalBy runs "COMMAND eval" by the shell, with the expression on standard input: as
// root, Debian's wrapper of rabbitmqctl expands what it finds in arguments.
func evalBy(command string) drain.Shell {
	return func(ctx context.Context, expression string) (io.ReadCloser, error) {
		c := exec.CommandContext(ctx, "sh", "-c", "exec "+command+" eval")
		c.WaitDelay = 10 * time.Second
		c.Stdin = strings.NewReader(expression)
		e := &evaluation{command: command, c: c}
		c.Stderr = &e.complaint
		var err error
		if e.Reader, err = c.StdoutPipe(); err != nil {
			return nil, err
		}
		if err := c.Start(); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		return e, nil
	}
}

// evaluation is a command that runs.
type evaluation struct {
	io.Reader
	command   string
	c         *exec.Cmd
	complaint beginning
}

// Close waits for the command's end.
func (e *evaluation) Close() error {
	err := e.c.Wait()
	if err == nil {
		return nil
	}
	why := term.OneLine(strings.TrimSpace(string(e.complaint)))
	if why == "" {
		return fmt.Errorf("%s eval: %w", e.command, err)
	}
	return fmt.Errorf("%s eval: %w: %s", e.command, err, why)
}

// beginning keeps the first of what is written to it.
type beginning []byte

func (b *beginning) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), maxComplaint-len(*b))]...)
	return len(p), nil
}
