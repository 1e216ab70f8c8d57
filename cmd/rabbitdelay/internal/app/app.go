package app

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Exit codes in addition to those of every program. docs/commands/README.md lists all of them.
const (
	ExitToDo    = 2 // plan: there are changes to make; requeue, discard, plugin drain: some messages stayed
	ExitUnseen  = 2 // doctor, status, trace, plan, plugin status: some parts could not be inspected
	ExitTimeout = 3 // consume: fewer messages arrived than requested
)

// App is one run of rabbitdelay.
type App struct {
	*program.Program

	Version string // the version of this binary
}

// Seconds returns a duration in seconds for JSON, rounded to milliseconds.
func Seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

// BodyText returns a body as human-readable text. If it is not valid UTF-8, the text only gives its length.
func BodyText(body []byte) string {
	if !utf8.Valid(body) {
		return fmt.Sprintf("(%d bytes)", len(body))
	}
	return string(body)
}

// Duration is a flag value in the syntax of the YAML file, which includes days.
type Duration time.Duration

func (d *Duration) String() string { return topology.FormatDuration(time.Duration(*d)) }

// Type implements pflag.Value.
func (*Duration) Type() string { return "duration" }

// Set implements pflag.Value.
func (d *Duration) Set(s string) error {
	v, err := topology.ParseDuration(s)
	*d = Duration(v)
	return err
}

// Instant is a flag value for a time, in the syntax of schedule.ParseInstant.
type Instant time.Time

func (i *Instant) String() string {
	if time.Time(*i).IsZero() {
		return ""
	}
	return time.Time(*i).Format(time.RFC3339Nano)
}

// Type implements pflag.Value.
func (*Instant) Type() string { return "time" }

// Set implements pflag.Value.
func (i *Instant) Set(s string) error {
	t, err := schedule.ParseInstant(s, time.Now())
	*i = Instant(t)
	return err
}

// ParseHeader parses the name=value of a --header flag.
func ParseHeader(pair string) (name, value string, err error) {
	name, value, ok := strings.Cut(pair, "=")
	if !ok || name == "" {
		return "", "", fmt.Errorf("--header: expected name=value, got %q", pair)
	}
	return name, value, nil
}

// ParseHeaders parses the name=value pairs of several --header flags.
func ParseHeaders(pairs []string) (map[string]string, error) {
	headers := make(map[string]string, len(pairs))
	for _, p := range pairs {
		name, value, err := ParseHeader(p)
		if err != nil {
			return nil, err
		}
		headers[name] = value
	}
	return headers, nil
}

// ReadBody returns the body that --body specifies: a literal text, the content of @file, or - for standard input.
func ReadBody(flag string, stdin io.Reader) ([]byte, error) {
	switch {
	case flag == "-":
		b, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("--body: reading standard input: %w", err)
		}
		return b, nil
	case strings.HasPrefix(flag, "@"):
		b, err := os.ReadFile(flag[1:])
		if err != nil {
			return nil, fmt.Errorf("--body: %w", err)
		}
		return b, nil
	}
	return []byte(flag), nil
}
