package service

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Entry is an audit entry: a change, and the name of the caller who made it.
type Entry struct {
	ID     string
	At     time.Time
	Who    string
	Action string // task.cancel, bulk.reschedule, recurring.pause, requeue, discard, retire, login ...
	Target string // a task's id, a queue or a name; empty if a filter selects the tasks
	Detail string // such as the filter or the due time
	Error  string // why the change failed
	Result string // the outcome in one line; set by jobs and commands
}

// ledger stores the audit and the jobs.
type ledger interface {
	// add writes an entry, or a job's entry together with its request.
	add(ctx context.Context, r record) error
	// outcome adds the result to an entry and, if the change failed, the reason.
	outcome(ctx context.Context, id, result, why string) error
	// entries returns the newest entries, including the requests of jobs. If before is an entry's id, it returns only
	// entries older than that one. If target is a task's id, the entries include the bulk changes that changed this
	// task.
	entries(ctx context.Context, target, before string, limit int) ([]record, error)
	// longer reports whether entries would return more than n entries without a limit.
	longer(ctx context.Context, target string, n int) (bool, error)

	// jobs returns the newest jobs, or the job with the given id if id is not empty.
	jobs(ctx context.Context, id string, limit int) ([]record, error)
	// alive records that the owner is still working on the job. reached also records the job's position and the tasks that
	// it has changed, in tx unless tx is nil. For both, mine is false if the job was stopped or has another owner.
	alive(ctx context.Context, r record) (mine bool, err error)
	reached(ctx context.Context, tx sqldb.Conn, r record, tasks []any) (mine bool, err error)
	// end records the outcome of a job that r.owner owns. A stopped job keeps its state.
	end(ctx context.Context, r record) error
	// stop marks a running job of any owner as stopped, and reports whether it did.
	stop(ctx context.Context, id string) (bool, error)
	// take assigns a job to another owner, and reports whether it did. The job must have failed, or have been interrupted
	// or stopped, or its owner must have stopped sending heartbeats.
	take(ctx context.Context, id, owner string) (bool, error)
	// purge deletes the entries and jobs that are older than the given time, except running jobs.
	purge(ctx context.Context, before time.Time) (int64, error)
}

// record is a row of the ledger.
type record struct {
	Job

	request string // the job's request, as JSON
	place   string // the position from which the job continues
	owner   string
}

// silent is how long a job may go without a heartbeat before its process is considered dead.
const silent = 15 * time.Second

// newID returns an id that sorts by time.
func newID() string {
	return uuid.Must(uuid.NewV7()).String() // panics if the system cannot provide random numbers
}

// maxTarget is the width of the table's target column.
const maxTarget = 255

// newEntry fills in the id, the time and the caller of an entry.
func newEntry(who Identity, x change.Entry) Entry {
	e := Entry{ID: newID(), At: time.Now(), Who: who.Name, Action: x.Action, Target: x.Target, Detail: x.Detail}
	if len(e.Target) > maxTarget {
		e.Target = strings.ToValidUTF8(e.Target[:maxTarget], "")
	}
	return e
}

// recorded records the entry, calls do, and adds the error of do to the entry. It returns ErrForbidden if the caller is
// not an operator.
func (c *Core) recorded(ctx context.Context, who Identity, x change.Entry, do func() error) error {
	e := newEntry(who, x)
	if !who.Role.May(RoleOperator) {
		return fmt.Errorf("%s: %w", e.Action, ErrForbidden)
	}
	if err := c.record(ctx, record{Job: Job{Entry: e, ID: e.ID}}); err != nil {
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	err := do()
	if err != nil {
		e.Error = err.Error()
		if ferr := c.ledger.outcome(context.WithoutCancel(ctx), e.ID, "", e.Error); ferr != nil {
			c.log.Warn("could not record in the audit that a change failed", zap.Error(ferr))
		}
	}
	c.logged(e)
	return err
}

// record adds a record to the ledger. It returns an error without trying if the database does not answer.
func (c *Core) record(ctx context.Context, r record) error {
	if err := c.answers(ctx); err != nil {
		return err
	}
	return c.ledger.add(ctx, r)
}

func (c *Core) logged(e Entry) {
	fields := []zap.Field{zap.String("who", e.Who), zap.String("action", e.Action), zap.String("target", e.Target), zap.String("detail", e.Detail)}
	if e.Error != "" {
		fields = append(fields, zap.String("error", e.Error))
	}
	c.log.Info("audit", fields...)
}

// Note records an event that happened outside of the Core, such as a login. If it was refused, why is the reason.
func (c *Core) Note(ctx context.Context, who Identity, x change.Entry, why string) {
	who.Name = cmp.Or(who.Name, "nobody")
	e := newEntry(who, x)
	e.Error = why
	if err := c.record(ctx, record{Job: Job{Entry: e, ID: e.ID}}); err != nil {
		c.log.Warn("could not record an audit entry", zap.Error(err))
	}
	c.logged(e)
}

const (
	purgeEvery = 10 * time.Minute
	purgeAgain = 15 * time.Second // the pause after a failure
)

// purgeOld deletes old entries until the Core is closed.
func (c *Core) purgeOld() {
	for {
		n, err := c.ledger.purge(c.ctx, time.Now().Add(-c.cfg.Keep))
		if c.ctx.Err() != nil {
			return
		}
		pause := purgeEvery
		if err != nil {
			pause = purgeAgain
			c.log.Warn("could not delete old audit entries; trying again", zap.Error(err))
			err = fmt.Errorf("old audit entries cannot be deleted: %w", err)
		} else if n > 0 {
			c.log.Debug("deleted old audit entries", zap.Int64("entries", n))
		}
		c.purged.Store(&err)
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// JobState is a stage in the life of a job.
type JobState string

// States of a job.
const (
	JobRunning     JobState = "running"
	JobDone        JobState = "done"
	JobFailed      JobState = "failed"
	JobInterrupted JobState = "interrupted" // its process exited before the job was done
	JobStopped     JobState = "stopped"     // stopped by StopJob
)

// Job is a long-running change that runs in the background.
type Job struct {
	ID       string
	Entry    Entry
	State    JobState
	Total    int64
	Done     int64
	Result   string // the outcome in one line; set when the job ends
	Finished time.Time
}

// heartbeat is how often a job reports that it is alive.
const heartbeat = 2 * time.Second
