package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sparse"
)

// HealthError is returned by Store.Health if parts of Run are failing. It wraps their errors, so errors.Is finds
// ErrDenied, for example.
type HealthError struct {
	Faults []Fault // at least one, in the order in which they began
}

// Fault describes a part of Run that currently fails.
type Fault struct {
	Part string `json:"part"` // "relay", "rate limit", "recall", "sweep", "recurring", "purge", "clock" or "listen"
	// Since is when the first of the consecutive errors occurred, by this process's clock.
	Since time.Time `json:"since"`
	Err   error     `json:"-"` // the latest error
}

func (f Fault) String() string {
	return fmt.Sprintf("%s: failing since %s: %v", f.Part, f.Since.UTC().Format(time.RFC3339), f.Err)
}

func (e *HealthError) Error() string {
	texts := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		texts[i] = f.String()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the faults.
func (e *HealthError) Unwrap() []error {
	errs := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		errs[i] = f.Err
	}
	return errs
}

type faults struct {
	mu      sync.Mutex
	running bool
	failing map[string]Fault       // by part
	logs    map[string]*sparse.Log // for each part that has failed
}

func (f *faults) health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.running {
		return ErrNotRunning
	}
	if len(f.failing) == 0 {
		return nil
	}
	e := &HealthError{}
	for _, fault := range f.failing {
		e.Faults = append(e.Faults, fault)
	}
	slices.SortFunc(e.Faults, func(a, b Fault) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Part, b.Part)) })
	return e
}

func (f *faults) begin() { f.setRunning(true) }
func (f *faults) end()   { f.setRunning(false) }

func (f *faults) setRunning(running bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = running
	f.failing = map[string]Fault{}
}

// setOutcome records whether a part of Run has succeeded or failed. It records no failure when Run is not running. It
// returns the log for the part's errors and, if the part has recovered, how long it had been failing.
func (f *faults) setOutcome(part string, err error, now time.Time) (log *sparse.Log, ended time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, failing := f.failing[part]
	if err != nil && f.logs[part] == nil {
		if f.logs == nil {
			f.logs = map[string]*sparse.Log{}
		}
		f.logs[part] = &sparse.Log{}
	}
	switch {
	case err == nil || !f.running:
		delete(f.failing, part)
		if failing {
			ended = now.Sub(before.Since)
		}
	case failing:
		f.failing[part] = Fault{Part: part, Since: before.Since, Err: err}
	default:
		f.failing[part] = Fault{Part: part, Since: now, Err: err}
	}
	return f.logs[part], ended
}
