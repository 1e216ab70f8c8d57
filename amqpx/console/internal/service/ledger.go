package service

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Entry is a line of the audit: who did what.
type Entry struct {
	ID     string
	At     time.Time
	Who    string
	Action string // task.cancel, bulk.move-to, recurring.pause, requeue, discard, retire, login ...
	Target string // a task's id, a queue, a name; empty for a filter
	Detail string // the filter, the instant
	Error  string // why it was not done
	Result string // what was done, in a line; of jobs and of commands
}

// ledger keeps the audit and the jobs.
type ledger interface {
	// add writes an entry, and that of a job with its request.
	add(ctx context.Context, r record) error
	// outcome adds to an entry what was done, and why it failed.
	outcome(ctx context.Context, id, result, why string) error
	// entries returns the newest entries, those of jobs with their requests. The entries
	// of a task include bulk changes that changed it.
	entries(ctx context.Context, target, before string, limit int) ([]record, error)

	// jobs returns the newest jobs, or only the one with the id, if there is one.
	jobs(ctx context.Context, id string, limit int) ([]record, error)
	// alive records that the owner works on the job; reached records also how far it is
	// and which tasks it changed, in tx unless that is nil. mine is false once the job
	// has another owner or was stopped.
	alive(ctx context.Context, r record) (mine bool, err error)
	reached(ctx context.Context, tx sqldb.Conn, r record, tasks []any) (mine bool, err error)
	// end records the outcome of a job of the owner. A stopped job stays stopped.
	end(ctx context.Context, r record) error
	// stop ends a running job, whoever its owner is, and reports whether it ran.
	stop(ctx context.Context, id string) (bool, error)
	// take hands a job that ended without being done, or whose owner is silent, to
	// another owner, and reports whether it could.
	take(ctx context.Context, id, owner string) (bool, error)
	// purge deletes entries and jobs from before an instant, except running jobs.
	purge(ctx context.Context, before time.Time) (int64, error)
}

// record is a row of the ledger.
type record struct {
	Job

	request string // what a job is to do
	place   string // after which it goes on
	owner   string
}

// silent is how long a job may not report before its process is taken for dead.
const silent = 15 * time.Second

// newID returns an id that sorts by time.
func newID() string {
	return uuid.Must(uuid.NewV7()).String() // fails where the system has no random numbers
}

// maxTarget is the width of the table's column.
const maxTarget = 255

// newEntry completes an entry that is to be recorded.
func newEntry(who Identity, e Entry) Entry {
	e.ID, e.At, e.Who = newID(), time.Now(), who.Name
	if len(e.Target) > maxTarget {
		e.Target = strings.ToValidUTF8(e.Target[:maxTarget], "")
	}
	return e
}

// recorded calls do for an operator, after it has recorded the entry.
func (c *Core) recorded(ctx context.Context, who Identity, e Entry, do func() error) error {
	e = newEntry(who, e)
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
			c.log.Warn("audit: recording a failure", zap.Error(ferr))
		}
	}
	c.logged(e)
	return err
}

// record writes to the ledger, if the database answers at all.
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

// Note records what was done or refused elsewhere, such as a login.
func (c *Core) Note(ctx context.Context, who Identity, e Entry) {
	who.Name = cmp.Or(who.Name, "nobody")
	e = newEntry(who, e)
	if err := c.record(ctx, record{Job: Job{Entry: e, ID: e.ID}}); err != nil {
		c.log.Warn("audit: not recorded", zap.Error(err))
	}
	c.logged(e)
}

const (
	purgeEvery = 10 * time.Minute
	purgeAgain = 15 * time.Second // after one that failed
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
			err = fmt.Errorf("old entries of the audit cannot be deleted: %w", err)
			c.log.Warn("audit", zap.Error(err))
		} else if n > 0 {
			c.log.Debug("audit: old entries were deleted", zap.Int64("entries", n))
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
	JobInterrupted JobState = "interrupted" // its process ended
	JobStopped     JobState = "stopped"     // by StopJob
)

// Job is a change that takes long and runs in the background.
type Job struct {
	ID       string
	Entry    Entry
	State    JobState
	Total    int64
	Done     int64
	Result   string // a line, once it is over
	Finished time.Time
}

// heartbeat is how often a job reports that it is alive.
const heartbeat = 2 * time.Second
