package schedule

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Fault is a part of Run that fails at present.
type Fault struct {
	Part  string    // "relay", "sweep", "recurring", "purge", "clock" or "listen"
	Err   error     // of the last try
	Since time.Time // the first failure after the last success, by this process's clock
}

// Faults tells which parts of Run failed when they last ran, in the order in which
// they began to fail; none if all is well, and when Run does not run. It asks
// nobody, so that a probe may call it as often as it likes. A destination in
// trouble is no fault: it delays its own tasks only, which say so.
func (s *Store) Faults() []Fault { return s.faults.list() }

type faults struct {
	mu sync.Mutex
	of map[string]Fault
}

func (f *faults) list() []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Fault, 0, len(f.of))
	for _, fault := range f.of {
		list = append(list, fault)
	}
	slices.SortFunc(list, func(a, b Fault) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Part, b.Part)) })
	return list
}

// note keeps the outcome of a part's try.
func (f *faults) note(part string, err error, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.of, part)
		return
	}
	if before, failing := f.of[part]; failing {
		now = before.Since
	}
	if f.of == nil {
		f.of = map[string]Fault{}
	}
	f.of[part] = Fault{part, err, now}
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of = nil
}

// report keeps, logs and hands on the outcome of a part's try.
func (s *Store) report(part string, err error) {
	err = sqldb.Explain(err)
	s.faults.note(part, err, s.local())
	if err == nil {
		return
	}
	level := zap.WarnLevel
	if errors.Is(err, ErrDenied) {
		level = zap.ErrorLevel // nothing but a grant mends it
	}
	s.log.Log(level, "schedule: "+part+" failed; it will be tried again", zap.Error(err))
	if s.cfg.Hooks.Error != nil {
		s.cfg.Hooks.Error(part, err)
	}
}
