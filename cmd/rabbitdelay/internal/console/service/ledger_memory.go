package service

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// memory is the ledger of a process without a database. All entries also go to the log.
type memory struct {
	mu   sync.Mutex
	list []record // oldest first
}

// remembered is the maximum number of entries that are kept.
const remembered = 1000

func (m *memory) add(_ context.Context, r record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) >= remembered {
		oldest := max(0, slices.IndexFunc(m.list, func(r record) bool { return r.State != JobRunning }))
		m.list = slices.Delete(m.list, oldest, oldest+1)
	}
	m.list = append(m.list, r)
	return nil
}

// change calls do with the record with this id and returns its result. It returns false if there is no such record.
func (m *memory) change(id string, do func(*record) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.list, func(r record) bool { return r.ID == id })
	return i >= 0 && do(&m.list[i])
}

func (m *memory) outcome(_ context.Context, id, result, why string) error {
	m.change(id, func(r *record) bool {
		r.Entry.Result, r.Entry.Error = result, why
		return true
	})
	return nil
}

func (m *memory) entries(_ context.Context, target, before string, limit int) ([]record, error) {
	return m.newest(limit, func(r record) bool {
		return (target == "" || r.Entry.Target == target) && (before == "" || r.ID < before)
	}), nil
}

func (m *memory) jobs(_ context.Context, id string, limit int) ([]record, error) {
	return m.newest(limit, func(r record) bool { return r.State != "" && (id == "" || r.ID == id) }), nil
}

func (m *memory) purge(_ context.Context, before time.Time) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.list)
	m.list = slices.DeleteFunc(m.list, func(r record) bool { return r.Entry.At.Before(before) && r.State != JobRunning })
	return int64(n - len(m.list)), nil
}

func (m *memory) longer(ctx context.Context, target string, n int) (bool, error) {
	list, err := m.entries(ctx, target, "", n+1)
	return len(list) > n, err
}

func (m *memory) newest(limit int, want func(record) bool) []record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []record
	for _, r := range slices.Backward(m.list) {
		if len(out) < limit && want(r) {
			out = append(out, r)
		}
	}
	return out
}

// ownedBy reports whether the job is running and belongs to owner.
func (r *record) ownedBy(owner string) bool { return r.State == JobRunning && r.owner == owner }

func (m *memory) alive(_ context.Context, now record) (bool, error) {
	return m.change(now.ID, func(r *record) bool { return r.ownedBy(now.owner) }), nil
}

func (m *memory) reached(_ context.Context, _ sqldb.Conn, now record, _ []any) (bool, error) {
	return m.change(now.ID, func(r *record) bool {
		if !r.ownedBy(now.owner) {
			return false
		}
		r.Done, r.place = now.Done, now.place
		return true
	}), nil
}

func (m *memory) end(_ context.Context, now record) error {
	m.change(now.ID, func(r *record) bool {
		if r.owner != now.owner || r.State != JobRunning && r.State != JobStopped {
			return false
		}
		if r.State == JobRunning {
			r.State = now.State
		}
		r.Done, r.place, r.Result, r.Entry.Error, r.Finished = now.Done, now.place, now.Result, now.Entry.Error, time.Now()
		return true
	})
	return nil
}

func (m *memory) stop(_ context.Context, id string) (bool, error) {
	return m.change(id, func(r *record) bool {
		if r.State != JobRunning {
			return false
		}
		r.State, r.Finished = JobStopped, time.Now()
		return true
	}), nil
}

func (m *memory) take(_ context.Context, id, owner string) (bool, error) {
	return m.change(id, func(r *record) bool {
		if r.State != JobFailed && r.State != JobInterrupted && r.State != JobStopped {
			return false
		}
		r.State, r.owner, r.Finished, r.Result, r.Entry.Error = JobRunning, owner, time.Time{}, "", ""
		return true
	}), nil
}
