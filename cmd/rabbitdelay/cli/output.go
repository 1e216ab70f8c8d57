package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/rabbitdelay/rabbitdelay/config"
)

// printJSON writes v as one line to standard output.
func (a *app) printJSON(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(append(line, '\n'))
	return err
}

// printf writes to standard output for people.
func (a *app) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stdout, format, args...) // a closed pipe is the reader's wish
}

// notef tells on standard error what is going on: a line, or with --json an object.
func (a *app) notef(format string, args ...any) {
	if a.quiet {
		return
	}
	text := fmt.Sprintf(format, args...)
	if a.json {
		a.errorJSON("note", strings.TrimPrefix(text, "note: "))
		return
	}
	_, _ = fmt.Fprintln(a.stderr, text)
}

// errorJSON writes an object of one text to standard error.
func (a *app) errorJSON(key, text string) {
	line, err := json.Marshal(map[string]string{key: text})
	if err == nil { // text always can be
		_, _ = fmt.Fprintf(a.stderr, "%s\n", line)
	}
}

// printError writes an error to standard error: one line, or with --json one
// object. The problems of a file keep their lines.
func (a *app) printError(err error) {
	text := hidden.ReplaceAllString(err.Error(), "${1}xxxxx@")
	if a.json {
		a.errorJSON("error", text)
		return
	}
	if _, ok := errors.AsType[*config.Error](err); !ok {
		text = oneLine(text)
	}
	_, _ = fmt.Fprintf(a.stderr, "rabbitdelay: %s\n", text)
}

// hidden is what user:password@ looks like in a URL. What quotes an argument, such
// as the parser of flags, does not know that it is one.
var hidden = regexp.MustCompile(`(://[^\s:/@"']*:)[^\s"']*@`)

// waiting shows on a terminal what takes a while; the function returned takes it
// off the screen.
func (a *app) waiting(what string) (done func()) {
	if a.quiet || !isTerminal(a.stderr) {
		return func() {}
	}
	_, _ = fmt.Fprintf(a.stderr, "%s ...", what)
	return func() { _, _ = fmt.Fprint(a.stderr, "\r\x1b[K") }
}

// progress is a progress bar on a terminal, and nothing elsewhere.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress(total int, what string) progress {
	if a.quiet || !isTerminal(a.stderr) || total < 1 {
		return progress{}
	}
	return progress{progressbar.NewOptions(total,
		progressbar.OptionSetWriter(a.stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "#", SaucerPadding: ".", BarStart: "[", BarEnd: "]"}),
	)}
}

func (p progress) add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n) // drawing only
	}
}

func (p progress) set(n int, what string) {
	if p.bar != nil {
		p.bar.Describe(what)
		_ = p.bar.Set(n)
	}
}

// clear takes the bar off the screen.
func (p progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}

func isTerminal(w io.Writer) bool {
	if s, ok := w.(*serialWriter); ok {
		w = s.w
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// serialWriter lets the loggers of a run, its connections and its own messages
// share one writer, and drops what comes after the run has ended.
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
