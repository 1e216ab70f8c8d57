package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// HealthError is what Store.Health returns when parts of Run fail. errors.Is finds
// ErrDenied and the databases' errors in it.
type HealthError struct {
	Faults []Fault // at least one, in the order in which they began
}

// Fault is a part of Run that fails at present.
type Fault struct {
	Part  string    `json:"part"` // "relay", "recall", "sweep", "recurring", "purge", "clock" or "listen"
	Since time.Time `json:"since"`
	// Err is the error of the last try; Since is when the first try failed after the
	// last that did not, by this process's clock.
	Err error `json:"-"`
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

// Health returns nil while Run runs and each part of it succeeded when it last ran,
// ErrNotRunning while Run does not run, and else a *HealthError. It asks nobody, so
// a probe may call it each second. A part that failed is tried again within 15
// seconds. A database that hangs is a failure after a minute (Lease, if that is
// longer). A destination in trouble is no fault: it delays its own tasks only,
// which say so. Nor is a recurring task whose row is wrong, which Recurring.LastError
// says; one that only this process cannot read is. For the sender see amqpx.Client's Health.
func (s *Store) Health() error { return s.faults.health() }

type faults struct {
	mu      sync.Mutex
	running bool
	of      map[string]Fault
}

func (f *faults) health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.running {
		return ErrNotRunning
	}
	if len(f.of) == 0 {
		return nil
	}
	e := &HealthError{}
	for _, fault := range f.of {
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
	f.of = map[string]Fault{}
}

// setOutcome keeps the outcome of a part's try.
func (f *faults) setOutcome(part string, err error, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil || !f.running {
		delete(f.of, part)
		return
	}
	if before, failing := f.of[part]; failing {
		now = before.Since
	}
	f.of[part] = Fault{Part: part, Since: now, Err: err}
}

// reports returns what keeps, logs and hands on the outcomes of a part's tries.
func (s *Store) reports(part string) func(error) {
	return func(err error) {
		err = sqldb.Explain(err)
		s.faults.setOutcome(part, err, s.pace.Local())
		if err == nil {
			return
		}
		level := zap.WarnLevel
		if errors.Is(err, ErrDenied) {
			level = zap.ErrorLevel // nothing but a grant mends it
		}
		s.log.Log(level, "schedule: "+part+" failed; it will be tried again", zap.Error(err))
		if s.cfg.Hooks.Error != nil {
			s.observed(func() { s.cfg.Hooks.Error(part, err) })
		}
	}
}
