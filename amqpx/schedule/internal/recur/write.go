package recur

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Errors for an existing and for a missing row. Package schedule exports them.
var (
	ErrExists = errors.New("there is already a recurring task with that name; use another name, or change the existing one")
	ErrNone   = errors.New("there is no recurring task with that name")
)

// Change is the outcome of Put.
type Change int

// The outcomes of Put.
const (
	Created Change = iota
	Changed
	Unchanged
)

// Get reads a row. It returns ErrNone if the row does not exist.
func Get(ctx context.Context, c rows.Conn, name string) (*rows.Schedule, error) {
	return found(c.Schedule(ctx, name))
}

func found(s *rows.Schedule, err error) (*rows.Schedule, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNone
	}
	return s, err
}

// Check fills in defaults and returns an *Error for a row that cannot be written, or whose tasks
// cannot be sent.
func (p *Planner) Check(s *rows.Schedule) error {
	if _, err := Check(s, p.MaxBody, p.CheckTask); err != nil {
		return err
	}
	task := s.Task
	task.ID = s.Name
	if problem := p.Sendable(&task); problem != nil {
		return &Error{s.Name, []*rows.FieldError{problem}}
	}
	return nil
}

// Add inserts a checked row, and plans it, so that the task of its next occurrence exists. It returns ErrExists if
// there is already a row with that name.
func (p *Planner) Add(ctx context.Context, c rows.Conn, s *rows.Schedule) error {
	inserted, err := c.InsertSchedule(ctx, s, p.Poller.Now().UnixMilli())
	if err != nil {
		return err
	}
	if !inserted {
		return ErrExists
	}
	return p.replan(ctx, c, s.Name)
}

// Put inserts a checked row, or changes the existing row with that name to match it. A row that is paused stays paused.
func (p *Planner) Put(ctx context.Context, c rows.Conn, s *rows.Schedule) (Change, error) {
	old, err := Get(ctx, c, s.Name)
	switch {
	case errors.Is(err, ErrNone):
		if err := p.Add(ctx, c, s); !errors.Is(err, ErrExists) {
			return Created, err
		}
	case err != nil:
		return Unchanged, err
	case old.Bad == nil && same(old, s):
		return Unchanged, nil
	}
	return Changed, p.Edit(ctx, c, s.Name, func(old *rows.Schedule) error {
		paused := old.Paused
		*old = *s
		old.Paused = paused
		return nil
	})
}

// Edit applies change to a row, checks and writes it, and plans it again.
func (p *Planner) Edit(ctx context.Context, c rows.Conn, name string, change func(s *rows.Schedule) error) error {
	s, err := p.lock(ctx, c, name)
	if err != nil {
		return err
	}
	if err := change(s); err != nil {
		return err
	}
	s.Name = name
	if err := p.Check(s); err != nil {
		return err
	}
	if err := c.WriteSchedule(ctx, s); err != nil {
		return err
	}
	return p.replan(ctx, c, name)
}

// SetPaused pauses or resumes a row, and plans it again.
func (p *Planner) SetPaused(ctx context.Context, c rows.Conn, name string, paused bool) error {
	if _, err := p.lock(ctx, c, name); err != nil {
		return err
	}
	if err := c.PauseSchedule(ctx, name, paused); err != nil {
		return err
	}
	return p.replan(ctx, c, name)
}

// Delete deletes a row, and withdraws its tasks that are not due yet.
func (p *Planner) Delete(ctx context.Context, c rows.Conn, name string) error {
	s, err := p.lock(ctx, c, name)
	if err != nil {
		return err
	}
	x := &planning{Planner: p, c: c, s: s, now: p.Poller.Now()}
	if err := x.withdraw(ctx, true); err != nil {
		return err
	}
	return c.DeleteSchedule(ctx, name)
}

// Extra returns the task of an additional occurrence that is due at the given time.
func (p *Planner) Extra(ctx context.Context, c rows.Conn, name string, at time.Time) (*rows.Task, error) {
	s, err := Get(ctx, c, name)
	if err != nil {
		return nil, err
	}
	t := s.Task
	t.ID, t.DeliverAt = name+"@"+at.UTC().Format(extraLayout), at
	if problem := p.CheckTask(&t, p.MaxBody); problem != nil {
		return nil, &Error{name, []*rows.FieldError{problem}}
	}
	return &t, nil
}

func (p *Planner) lock(ctx context.Context, c rows.Conn, name string) (*rows.Schedule, error) {
	return found(c.LockSchedule(ctx, name, p.Poller.Now().UnixMilli()))
}

// replan withdraws the tasks of the row's older version, and creates the tasks of the current one.
func (p *Planner) replan(ctx context.Context, c rows.Conn, name string) error {
	s, err := Get(ctx, c, name)
	if err != nil {
		return err
	}
	_, err = p.plan(ctx, c, s)
	return err
}
