// Package term prints the output of commands: results to standard output, as text for people (table.go) or as
// JSON, and everything else to standard error. It asks, and shows how far something is.
package term

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// Terminal is where a program reads and writes, interactive or not.
type Terminal struct {
	Name           string // of the program, before its errors
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	JSON, Quiet    bool

	waiting atomic.Bool // there is a line whose place a note takes
	lost    atomic.Pointer[error]
}

// New returns a terminal whose standard error several goroutines may write to, and the function that ends it:
// what is written later is dropped. Whatever waits for standard input gets the error of ctx when that ends.
func New(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (t *Terminal, end func()) {
	errs := &serialWriter{w: stderr}
	return &Terminal{Stdin: &input{ctx, stdin}, Stdout: stdout, Stderr: errs}, errs.end
}

// PrintJSON writes v as one line to standard output.
func (t *Terminal) PrintJSON(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = t.Stdout.Write(append(line, '\n'))
	return err
}

// Printf writes to standard output for people. Lost returns its error.
func (t *Terminal) Printf(format string, args ...any) {
	_, _ = fmt.Fprintf(t, format, args...)
}

// Write writes to standard output, and remembers the first error for Lost.
func (t *Terminal) Write(p []byte) (int, error) {
	n, err := t.Stdout.Write(p)
	if err != nil && !errors.Is(err, syscall.EPIPE) { // a closed pipe is the reader's wish
		t.lost.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Lost returns why something that Printf or Write had to write is missing on
// standard output, nil if nothing is.
func (t *Terminal) Lost() error {
	if err := t.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Notef writes to standard error what is going on: a line, or with --json an object.
func (t *Terminal) Notef(format string, args ...any) {
	if t.Quiet {
		return
	}
	t.clear()
	text := fmt.Sprintf(format, args...)
	if t.JSON {
		t.errorJSON("note", strings.TrimPrefix(text, "note: "))
		return
	}
	_, _ = fmt.Fprintln(t.Stderr, text)
}

// errorJSON writes an object of one text to standard error.
func (t *Terminal) errorJSON(key, text string) {
	line, err := json.Marshal(map[string]string{key: text})
	if err == nil { // text always can be
		_, _ = fmt.Fprintf(t.Stderr, "%s\n", line)
	}
}

// PrintError writes an error to standard error: one line, or with --json one
// object. The problems of a file keep their lines.
func (t *Terminal) PrintError(err error) {
	text := hidden.ReplaceAllString(err.Error(), "${1}xxxxx@")
	if t.JSON {
		t.errorJSON("error", text)
		return
	}
	if _, ok := errors.AsType[*config.Error](err); !ok {
		text = shown.OneLine(text)
	}
	_, _ = fmt.Fprintf(t.Stderr, "%s: %s\n", t.Name, text)
}

// hidden matches user:password@ in a URL: an error may quote an argument without
// knowing that it is one, as the parser of flags does.
var hidden = regexp.MustCompile(`(://[^\s:/@"']*:)[^\s"']*@`)

// Waiting shows on a terminal what takes a while, until done is called.
func (t *Terminal) Waiting(what string) (done func()) {
	if t.Quiet || !Is(t.Stderr) {
		return func() {}
	}
	_, _ = fmt.Fprintf(t.Stderr, "%s ...", what)
	t.waiting.Store(true)
	return t.clear
}

func (t *Terminal) clear() {
	if t.waiting.Swap(false) {
		_, _ = fmt.Fprint(t.Stderr, "\r\x1b[K")
	}
}

// Is reports whether a stream is a terminal.
func Is(stream any) bool {
	f, ok := unwrap(stream).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// unwrap returns what the process was given as the stream.
func unwrap(stream any) any {
	switch s := stream.(type) {
	case *serialWriter:
		return s.w
	case *input:
		return s.r
	}
	return stream
}

// Size returns the number of columns and rows of a terminal, 0 if they are unknown.
func Size(stream any) (columns, rows int) {
	if f, ok := stream.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
			return columns, rows
		}
	}
	return 0, 0
}

// serialWriter is a writer that the loggers of a run, its connections and its own
// messages share. It drops what comes after the run has ended.
type serialWriter struct {
	mu    sync.Mutex
	w     io.Writer
	ended bool
}

func (s *serialWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return len(p), nil
	}
	return s.w.Write(p)
}

func (s *serialWriter) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

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

// Interactive reports whether somebody can be asked: whether standard input is a terminal.
func (t *Terminal) Interactive() bool { return Is(t.Stdin) }

// Ask asks on standard error, and returns a line of standard input, empty at its end.
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
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprint(t.Stderr, question) // who answers has seen it, or not
	secret, err := until(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	_, _ = fmt.Fprintln(t.Stderr)
	if ctx.Err() != nil {
		_ = term.Restore(fd, before) // that what is typed shows again; the process ends
	}
	return secret, err
}

// Progress is a progress bar on a terminal, and nothing elsewhere.
type Progress struct{ bar *progressbar.ProgressBar }

// Progress draws nothing without a total.
func (t *Terminal) Progress(total int, what string) Progress {
	if t.Quiet || !Is(t.Stderr) || total < 1 {
		return Progress{}
	}
	return Progress{progressbar.NewOptions(total,
		progressbar.OptionSetWriter(t.Stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "#", SaucerPadding: ".", BarStart: "[", BarEnd: "]"}),
	)}
}

// Add moves the bar on.
func (p Progress) Add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n) // drawing only
	}
}

// Set moves the bar to n of the total, with another description.
func (p Progress) Set(n int, what string) {
	if p.bar != nil {
		p.bar.Describe(what)
		_ = p.bar.Set(n)
	}
}

// Clear takes the bar off the screen.
func (p Progress) Clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}
