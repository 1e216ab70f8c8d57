package term

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// input reads until the run's context ends. A terminal or a pipe cannot be told to
// stop: the process ends, and the reading with it.
type input struct {
	ctx context.Context
	r   io.Reader
}

func (i *input) Read(p []byte) (int, error) {
	b, err := until(i.ctx, func() ([]byte, error) {
		b := make([]byte, len(p)) // not p, which its owner has back when the context ends
		n, err := i.r.Read(b)
		return b[:n], err
	})
	return copy(p, b), err
}

// until returns what read returns, or the end of ctx.
func until(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := read()
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.b, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Interactive reports whether somebody can be asked: whether standard input is a
// terminal.
func (t *Terminal) Interactive() bool { return Is(t.Stdin) }

// Ask asks on standard error, and returns a line of standard input, empty at its
// end.
func (t *Terminal) Ask(question string) (string, error) {
	if _, err := fmt.Fprint(t.Stderr, question); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(t.Stdin).ReadString('\n')
	switch {
	case errors.Is(err, io.EOF):
		err = nil
	case err != nil:
		_, _ = fmt.Fprintln(t.Stderr) // ends the question's line
	}
	return strings.TrimSpace(line), err
}

// Secret asks on the terminal that is standard input, without showing the answer.
func (t *Terminal) Secret(ctx context.Context, question string) ([]byte, error) {
	in, ok := unwrap(t.Stdin).(*os.File)
	if !ok {
		return nil, fmt.Errorf("%w: standard input is no terminal", os.ErrInvalid)
	}
	fd := int(in.Fd())
	shown, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprint(t.Stderr, question) // who answers has seen it, or not
	secret, err := until(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	_, _ = fmt.Fprintln(t.Stderr)
	if ctx.Err() != nil {
		_ = term.Restore(fd, shown) // that what is typed shows again; the process ends
	}
	return secret, err
}
