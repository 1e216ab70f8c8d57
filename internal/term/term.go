// Package term prints the output of commands. Results go to standard output, as human-readable text (table.go) or as
// JSON, and everything else goes to standard error. The package also asks questions and shows progress.
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

	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// Terminal contains a program's input and outputs, whether or not they are interactive.
type Terminal struct {
	Name           string // the program's name, which precedes its errors
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	JSON, Quiet    bool

	waiting atomic.Bool // whether Waiting has written a line that the next note replaces
	lost    atomic.Pointer[error]
}

// New returns a terminal whose standard error can be used by several goroutines, and a function that closes it.
// Writes after that are dropped. Reads from standard input return the error of ctx once ctx ends.
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

// Printf writes human-readable text to standard output. An error is kept for Lost.
func (t *Terminal) Printf(format string, args ...any) {
	_, _ = fmt.Fprintf(t, format, args...)
}

// Write writes to standard output and keeps the first error for Lost.
func (t *Terminal) Write(p []byte) (int, error) {
	n, err := t.Stdout.Write(p)
	if err != nil && !errors.Is(err, syscall.EPIPE) { // EPIPE means that the reader has closed the pipe, usually on purpose
		t.lost.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Lost returns the first error of Printf or Write, which means that standard output is incomplete. It returns nil if
// there was none.
func (t *Terminal) Lost() error {
	if err := t.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Notef writes a progress note to standard error, as a line of text, or as a JSON object with --json.
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

// errorJSON writes an object with a single text to standard error.
func (t *Terminal) errorJSON(key, text string) {
	line, err := json.Marshal(map[string]string{key: text})
	if err == nil { // a map of strings can always be encoded
		_, _ = fmt.Fprintf(t.Stderr, "%s\n", line)
	}
}

// PrintError writes an error to standard error as one line of text, or as one JSON object with --json. The problems of
// a configuration file stay on separate lines.
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

// hidden matches user:password@ in a URL. An error may quote an argument that contains a URL without recognising it, as
// the flag parser's errors do.
var hidden = regexp.MustCompile(`(://[^\s:/@"']*:)[^\s"']*@`)

// Waiting shows on a terminal that an operation is in progress, until done is called.
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

// ReportStyle returns the style of a report on standard output: coloured and as wide as the terminal, if it is one.
// The environment variables NO_COLOR and TERM=dumb turn colours off.
func (t *Terminal) ReportStyle() report.Style {
	if !Is(t.Stdout) {
		return report.Style{}
	}
	columns, _ := Size(t.Stdout)
	return report.Style{
		Color: os.Getenv("NO_COLOR") == "" && !strings.EqualFold(os.Getenv("TERM"), "dumb"),
		Width: min(columns, 120),
	}
}

// Is reports whether a stream is a terminal.
func Is(stream any) bool {
	f, ok := unwrap(stream).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// unwrap returns the original stream behind the terminal's reader or writer.
func unwrap(stream any) any {
	switch s := stream.(type) {
	case *serialWriter:
		return s.w
	case *input:
		return s.r
	}
	return stream
}

// Size returns the number of columns and rows of a terminal, or 0 if they are unknown.
func Size(stream any) (columns, rows int) {
	if f, ok := stream.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
			return columns, rows
		}
	}
	return 0, 0
}

// serialWriter serializes concurrent writes to standard error. It drops writes after the run has ended.
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

// input stops reading when the run's context ends. A blocking read from a terminal or a pipe cannot be interrupted,
// so it continues in the background until the process ends.
type input struct {
	ctx context.Context
	r   io.Reader
}

func (i *input) Read(p []byte) (int, error) {
	b, err := until(i.ctx, func() ([]byte, error) {
		b := make([]byte, len(p)) // not p, because the caller may reuse p after the context ends
		n, err := i.r.Read(b)
		return b[:n], err
	})
	return copy(p, b), err
}

// until returns the result of read, or the error of ctx if ctx ends first.
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

// Interactive reports whether standard input is a terminal, so that questions can be asked.
func (t *Terminal) Interactive() bool { return Is(t.Stdin) }

// Ask prints a question to standard error and returns a line of standard input. At the end of input, the line is
// empty.
func (t *Terminal) Ask(question string) (string, error) {
	if _, err := fmt.Fprint(t.Stderr, question); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(t.Stdin).ReadString('\n')
	switch {
	case errors.Is(err, io.EOF):
		err = nil
	case err != nil:
		_, _ = fmt.Fprintln(t.Stderr) // end the line with the question
	}
	return strings.TrimSpace(line), err
}

// Secret asks a question on the terminal without echoing the answer. It returns an error if standard input is not a
// terminal.
func (t *Terminal) Secret(ctx context.Context, question string) ([]byte, error) {
	in, ok := unwrap(t.Stdin).(*os.File)
	if !ok {
		return nil, fmt.Errorf("%w: standard input is not a terminal", os.ErrInvalid)
	}
	fd := int(in.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprint(t.Stderr, question) // reading the answer works even if the question cannot be printed
	secret, err := until(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	_, _ = fmt.Fprintln(t.Stderr)
	if ctx.Err() != nil {
		_ = term.Restore(fd, before) // turn echo on again, because ReadPassword is still running
	}
	return secret, err
}

// Progress is a progress bar. It draws nothing if standard error is not a terminal.
type Progress struct{ bar *progressbar.ProgressBar }

// Progress returns a progress bar. If total is less than 1, it draws nothing.
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

// Add advances the bar by n.
func (p Progress) Add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n) // ignore the error: only the drawing of the bar failed
	}
}

// Set moves the bar to n of the total and changes its description.
func (p Progress) Set(n int, what string) {
	if p.bar != nil {
		p.bar.Describe(what)
		_ = p.bar.Set(n)
	}
}

// Clear removes the bar from the screen.
func (p Progress) Clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}
