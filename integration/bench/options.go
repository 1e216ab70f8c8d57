package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Options selects what is measured. Fields that are zero have their defaults.
type Options struct {
	// Scenarios lists the scenarios to run. Default all.
	Scenarios []string
	// QueueTypes lists the types of the delay and destination queues. Default quorum and classic. Scenarios that take
	// long use only the first.
	QueueTypes []topology.QueueType
	// Quick reduces all sizes, to check in a few minutes that the benchmark works. The resulting figures
	// are meaningless.
	Quick bool
	Sizes

	// URL is the URL of the broker. Default: AMQP_URL. If neither is set, a broker is started for each scenario.
	URL string

	// Progress is called for each group of cases. It returns a function that advances the progress bar by the given
	// number of repeats, and a function that ends it. Default: no progress.
	Progress func(what string, total int) (add func(n int), done func())
	// Log receives lines about the servers in use and about skipped cases. Default: the lines are discarded.
	Log func(line string)
}

// Sizes contains the options that affect the figures. If two defaults are given, the second applies to Options.Quick.
type Sizes struct {
	// Messages is the number of messages per repeat of publish, consume, telemetry, schedule and cost. Default 30,000
	// or 1,500.
	Messages int `json:"messages"`
	// Rate is the number of messages per second in the scenario latency, and of tasks per second in the scenarios
	// schedule and bulk, which measure their lateness. Default 1,000 or 300.
	Rate int `json:"rate"`
	// Repeats is the number of repeats of each case, at most 2 for latency and native, and 1 for bulk, console and
	// pending. Default 3 or 1.
	Repeats int `json:"repeats"`
	// Pending is the number of waiting messages in pending, and of tasks that bulk reschedules and console shows.
	// Default 1,000,000 or 5,000.
	Pending int `json:"pending"`
	// Body is the size of every message body in bytes. Default 256.
	Body int `json:"body_bytes"`
	// Concurrency is the concurrency of consume and telemetry. Default 64.
	Concurrency int `json:"concurrency"`
}

// size is a field of Sizes with its defaults and limits.
type size struct {
	name                string
	value               *int
	full, quick, lo, hi int
}

func (s *Sizes) all() []size {
	return []size{
		{"messages", &s.Messages, 30_000, 1_500, 100, 10_000_000},
		{"rate", &s.Rate, 1_000, 300, 10, 100_000},
		{"repeats", &s.Repeats, 3, 1, 1, 100},
		{"pending", &s.Pending, 1_000_000, 5_000, 1_000, 100_000_000},
		{"body", &s.Body, 256, 256, minBody, 1 << 20},
		{"concurrency", &s.Concurrency, 64, 64, 1, 10_000},
	}
}

// ErrOptions is wrapped by errors about Options.
var ErrOptions = errors.New("benchmark not possible")

// WithDefaults returns the options with defaults for unset fields.
func (o Options) WithDefaults() Options {
	for _, s := range o.all() {
		switch {
		case *s.value != 0:
		case o.Quick:
			*s.value = s.quick
		default:
			*s.value = s.full
		}
	}
	if len(o.Scenarios) == 0 {
		o.Scenarios = Scenarios()
	}
	if len(o.QueueTypes) == 0 {
		o.QueueTypes = []topology.QueueType{topology.Quorum, topology.Classic}
	}
	if o.Progress == nil {
		o.Progress = func(string, int) (func(int), func()) { return func(int) {}, func() {} }
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return o
}

// Validate checks the options after WithDefaults. It reports all errors together.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, args...)))
	}
	for _, s := range o.Scenarios {
		if !slices.Contains(Scenarios(), s) {
			bad("scenario %q; expected %s", s, strings.Join(Scenarios(), ", "))
		}
	}
	for _, t := range o.QueueTypes {
		if t != topology.Quorum && t != topology.Classic {
			bad("queue type %q; expected quorum or classic", t)
		}
	}
	for _, s := range o.all() {
		if *s.value < s.lo || *s.value > s.hi {
			bad("%s: %d; expected %d to %d", s.name, *s.value, s.lo, s.hi)
		}
	}
	return errors.Join(errs...)
}

// Run measures the scenarios one after the other. It skips everything that lacks a server, such as PostgreSQL, and adds
// a note to the result. If nothing else was requested, this is an error. If Run fails, it returns the incomplete result
// together with the error.
func Run(ctx context.Context, o Options) (*Result, error) {
	o = o.WithDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := newRun(o)
	err := r.all(ctx)
	return r.result, errors.Join(err, r.close())
}
