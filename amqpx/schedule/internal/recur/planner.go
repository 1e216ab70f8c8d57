package recur

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Planner plans the recurring tasks of one database.
type Planner struct {
	DB      *rows.DB
	Poller  *polling.Poller
	Log     *zap.Logger
	MaxBody int // maximum size of a body in bytes, for callers' writes and for the rows that this relay plans

	CheckTask CheckTask
	Sendable  func(t *rows.Task) *rows.FieldError // why the sender would reject the task; nil if it would accept it

	asides map[string]aside // rows that this relay skips for a time, by name; only the planning goroutine uses it
}

// longestPoll bounds the pause between two polls for recurring tasks, so that a new row is planned long before its
// first tasks are due.
const longestPoll = 15 * time.Second

// Loop plans recurring tasks until ctx ends.
func (p *Planner) Loop(ctx context.Context, report func(error)) {
	for {
		written := p.Poller.Written()
		pause, err := p.PlanAll(ctx)
		if ctx.Err() != nil {
			return
		}
		report(err)
		if !polling.Wait(ctx, pause, min(pause, p.Poller.Interval), written) {
			return
		}
	}
}

// mostFailures is the number of failed rows after which a poll ends, because that many failures suggest a problem with
// the database. If fewer rows fail, the remaining rows are still planned. Rows that failed are skipped for a time, so
// that the next poll reaches other rows.
const mostFailures = 10

// aside is a row that this relay skips for a time, because it could not plan it.
type aside struct {
	until time.Time
	err   error
}

const (
	failurePause = 5 * time.Second
	limitPause   = time.Minute // for a row that another relay may be able to plan
	mostAside    = 5000        // limits the placeholders in the statements that leave out these rows
)

// PlanAll plans all rows whose plan_at has passed, each in a separate transaction, and returns how long to wait before
// the next call.
func (p *Planner) PlanAll(ctx context.Context) (pause time.Duration, err error) {
	pause = min(p.Poller.Interval, longestPoll)
	longest := p.Poller.Longest(pause)
	maps.DeleteFunc(p.asides, func(_ string, a aside) bool { return !a.until.After(p.Poller.Now()) })
	for failures := 0; failures < mostFailures && len(p.asides) < mostAside && ctx.Err() == nil; {
		var next time.Duration
		err := p.Poller.Answered(ctx, func(ctx context.Context) (err error) { next, err = p.nextPoll(ctx, longest); return err })
		if err != nil {
			return pause, errors.Join(p.Aside(), err)
		}
		if next > 0 {
			if len(p.asides) > 0 {
				next = min(pause, next)
			}
			return next, p.Aside()
		}
		var s *rows.Schedule
		var limit error
		err = p.Poller.Answered(ctx, func(ctx context.Context) (err error) { s, limit, err = p.planNext(ctx); return err })
		switch {
		case s == nil || ctx.Err() != nil: // shutting down is not the row's fault
			return pause, errors.Join(p.Aside(), err)
		case err == nil && limit != nil:
			a := aside{until: p.Poller.Now().Add(limitPause)}
			if s.LastError == "" { // an invalid row already has its error in last_error
				a.err = limit
			}
			p.leaveAlone(s, a)
		case err != nil && sqldb.Refused(err) && p.blame(ctx, s, err) == nil:
		case err != nil:
			p.leaveAlone(s, aside{p.Poller.Now().Add(failurePause), fmt.Errorf("recurring task %s: %w", s.Name, err)})
			failures++
		}
	}
	return pause, p.Aside()
}

func (p *Planner) leaveAlone(s *rows.Schedule, a aside) {
	if p.asides == nil {
		p.asides = map[string]aside{}
	}
	p.asides[s.Name] = a
}

// Aside returns one error that joins the errors of the rows that this relay currently skips.
func (p *Planner) Aside() error {
	var errs []error
	for _, name := range p.leftAlone() {
		errs = append(errs, p.asides[name].err)
	}
	return errors.Join(errs...)
}

func (p *Planner) leftAlone() []string { return slices.Sorted(maps.Keys(p.asides)) }

// blame records in a row's last_error why the database refuses the row's tasks, and postpones the next attempt.
func (p *Planner) blame(ctx context.Context, s *rows.Schedule, why error) error {
	p.Log.Warn("the database refuses the tasks of a recurring task", zap.String("name", s.Name), zap.Error(why))
	c, err := p.DB.Conn(ctx)
	if err != nil {
		return err
	}
	return c.Blame(ctx, s, why, p.Poller.Now().Add(limitPause))
}

// nextPoll returns how long to wait until the next row has to be planned. It returns at most longest, and 0 if a row is
// due now.
func (p *Planner) nextPoll(ctx context.Context, longest time.Duration) (time.Duration, error) {
	c, err := p.DB.Conn(ctx)
	if err != nil {
		return 0, err
	}
	at, found, err := c.NextPlan(ctx, p.leftAlone())
	if err != nil {
		return 0, err
	}
	now := p.Poller.Now().UnixMilli()
	if !found || at-now > longest.Milliseconds() {
		return longest, nil
	}
	return max(0, time.Duration(at-now)*time.Millisecond), nil
}

// planNext plans the row whose plan_at is earliest, if it is due. It returns no row if none is due or if another relay
// has locked it. If the row cannot be planned, planNext returns it together with a limit, which applies only to this
// relay, or with an error.
func (p *Planner) planNext(ctx context.Context) (s *rows.Schedule, limit, err error) {
	err = p.DB.Transact(ctx, func(c rows.Conn) (err error) {
		limit = nil
		if s, err = c.ClaimSchedule(ctx, p.Poller.Now().UnixMilli(), p.leftAlone()); err != nil || s == nil {
			return err
		}
		limit, err = p.plan(ctx, c, s)
		return err
	})
	return s, limit, err
}
