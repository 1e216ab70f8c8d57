package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Names of the scenarios, in the order in which they run.
const (
	ScenarioPublish   = "publish"
	ScenarioConsume   = "consume"
	ScenarioTelemetry = "telemetry"
	ScenarioSchedule  = "schedule"
	ScenarioBulk      = "bulk"
	ScenarioConsole   = "console"
	ScenarioLatency   = "latency"
	ScenarioSustain   = "sustain"
	ScenarioNative    = "native"
	ScenarioCost      = "cost"
	ScenarioDeclare   = "declare"
	ScenarioPending   = "pending"
)

// Scenarios are all scenarios in the order in which they run.
func Scenarios() []string {
	return []string{ScenarioPublish, ScenarioConsume, ScenarioTelemetry, ScenarioSchedule, ScenarioBulk, ScenarioConsole, ScenarioLatency, ScenarioSustain, ScenarioNative, ScenarioCost, ScenarioDeclare, ScenarioPending}
}

// Options say what is measured. Zero values take the defaults given at each
// field, the second of two being that of Quick.
type Options struct {
	// Scenarios to run, default all.
	Scenarios []string
	// QueueTypes of delay and destination queues, default quorum and classic.
	// Sustain and pending, which take long, take the first only.
	QueueTypes []topology.QueueType
	// Messages per repeat of publish, consume, telemetry, schedule and cost, default 30,000 or 1,500.
	Messages int
	// Rate of the latency scenario in messages per second, and of the tasks whose
	// lateness schedule and bulk measure; default 1,000 or 300.
	Rate int
	// Repeats of each case, default 3 or 1; latency and pending have fewer.
	Repeats int
	// Pending is the number of waiting messages in that scenario, and of tasks that
	// bulk moves and console shows; default 1,000,000 or 5,000.
	Pending int
	// Body is the size of every body in bytes, default 256.
	Body int
	// Concurrency of the consume scenario, default 64.
	Concurrency int
	// Quick makes everything small enough to find out in a few minutes whether it
	// works; its figures mean nothing.
	Quick bool

	// URL of the broker; default AMQP_URL, else one is started.
	URL string

	// Progress is told of each step of known length; it returns what takes
	// advances, and what ends the step. Default: nobody is told.
	Progress func(what string, total int) (add func(n int), done func())
	// Log receives lines about what is used and what is left out.
	Log func(line string)
}

// ErrOptions is wrapped by errors about Options.
var ErrOptions = errors.New("benchmark not possible")

// WithDefaults returns the options with their defaults filled in.
func (o Options) WithDefaults() Options {
	normal := func(full, quick int) int {
		if o.Quick {
			return quick
		}
		return full
	}
	set := func(field *int, full, quick int) {
		if *field == 0 {
			*field = normal(full, quick)
		}
	}
	if len(o.Scenarios) == 0 {
		o.Scenarios = Scenarios()
	}
	if len(o.QueueTypes) == 0 {
		o.QueueTypes = []topology.QueueType{topology.Quorum, topology.Classic}
	}
	set(&o.Messages, 30_000, 1_500)
	set(&o.Rate, 1_000, 300)
	set(&o.Repeats, 3, 1)
	set(&o.Pending, 1_000_000, 5_000)
	set(&o.Body, 256, 256)
	set(&o.Concurrency, 64, 64)
	if o.Progress == nil {
		o.Progress = func(string, int) (func(int), func()) { return func(int) {}, func() {} }
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return o
}

// Validate checks the options, after WithDefaults, and reports all that is
// wrong at once.
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
	for _, f := range []struct {
		name          string
		value, lo, hi int
	}{
		{"messages", o.Messages, 100, 10_000_000},
		{"rate", o.Rate, 10, 100_000},
		{"repeats", o.Repeats, 1, 100},
		{"pending", o.Pending, 1_000, 100_000_000},
		{"body", o.Body, minBody, 1 << 20},
		{"concurrency", o.Concurrency, 1, 10_000},
	} {
		if f.value < f.lo || f.value > f.hi {
			bad("%s: %d; expected %d to %d", f.name, f.value, f.lo, f.hi)
		}
	}
	return errors.Join(errs...)
}

// Run measures the scenarios one after the other. A scenario that lacks a part,
// such as PostgreSQL, is left out with a note, unless nothing else was asked for.
// The result is also returned with an error, as far as it came.
func Run(ctx context.Context, o Options) (*Result, error) {
	o = o.WithDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := newRun(o)
	err := r.all(ctx)
	return r.result, errors.Join(err, r.close())
}
