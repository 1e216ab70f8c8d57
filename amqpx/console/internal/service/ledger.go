package service

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// ledger keeps who did what, and the jobs.
type ledger interface {
	// add writes an entry, of a job with its request.
	add(ctx context.Context, r record) error
	// fail adds the reason why it was not done.
	fail(ctx context.Context, id, why string) error
	// entries are the newest, with the request of a job. Those of a target include the
	// bulk changes of that task.
	entries(ctx context.Context, target, before string, limit int) ([]record, error)

	// jobs are the newest, or the one of an id; none is no error.
	jobs(ctx context.Context, id string, limit int) ([]record, error)
	// alive says that the owner is at work on a job, and reached how far it is and which
	// tasks it changed, in tx if that is not nil; false: the job is not its any more.
	alive(ctx context.Context, r record) (mine bool, err error)
	reached(ctx context.Context, tx sqldb.Tx, r record, tasks []any) (mine bool, err error)
	// end says how a job of the owner went; one that was stopped stays so.
	end(ctx context.Context, r record) error
	// stop ends a running job, whoever runs it; false: it does not run.
	stop(ctx context.Context, id string) (bool, error)
	// take gives a job that is over and not done, or whose owner is silent, to
	// another owner; false: it cannot go on.
	take(ctx context.Context, id, owner string) (bool, error)
	// purge deletes the entries and the jobs from before an instant, but for jobs that
	// run.
	purge(ctx context.Context, before time.Time) (int64, error)
}

// record is a row of the ledger.
type record struct {
	Job

	request string // what a job does
	place   string // behind which it goes on
	owner   string
}

// silent is how long nothing was heard of a job whose process is taken for dead.
const silent = 15 * time.Second

// newID is an id that sorts by time.
func newID() string {
	return uuid.Must(uuid.NewV7()).String() // fails where the system has no random numbers
}

// maxTarget is what the table has room for.
const maxTarget = 255

// entry completes what is to be recorded.
func entry(who Identity, e Entry) Entry {
	e.ID, e.At, e.Who = newID(), time.Now(), who.Name
	if len(e.Target) > maxTarget {
		e.Target = e.Target[:maxTarget]
	}
	return e
}

// recorded lets an operator do something, and records it before.
func (c *Core) recorded(ctx context.Context, who Identity, e Entry, do func() error) error {
	e = entry(who, e)
	if !who.Role.May(RoleOperator) {
		return fmt.Errorf("%s: %w", e.Action, ErrForbidden)
	}
	if err := c.record(ctx, record{Job: Job{Entry: e, ID: e.ID}}); err != nil {
		return fmt.Errorf("nothing was done, because it could not be recorded: %w", err)
	}
	err := do()
	if err != nil {
		e.Error = err.Error()
		if ferr := c.ledger.fail(context.WithoutCancel(ctx), e.ID, e.Error); ferr != nil {
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

// logged writes an entry to the log.
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
	e = entry(who, e)
	if err := c.record(ctx, record{Job: Job{Entry: e, ID: e.ID}}); err != nil {
		c.log.Warn("audit: not recorded", zap.Error(err))
	}
	c.logged(e)
}

const (
	purging      = 10 * time.Minute // the pause between two purges
	purgingAgain = 15 * time.Second // after one that failed
)

// keep deletes old entries until the Core is closed.
func (c *Core) keep() {
	for {
		n, err := c.ledger.purge(c.ctx, time.Now().Add(-c.cfg.Keep))
		if c.ctx.Err() != nil {
			return
		}
		pause := purging
		if err != nil {
			pause = purgingAgain
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

// MaxEntries is how many entries Audit returns at most.
const MaxEntries = 500

// Audit is a method of Records.
func (c *Core) Audit(ctx context.Context, who Identity, target, before string, limit int) ([]Entry, error) {
	if limit < 1 || limit > MaxEntries {
		return nil, &FieldError{"limit", fmt.Sprintf("%d; expected 1 to %d", limit, MaxEntries)}
	}
	ctx, cancel, err := c.bounded(ctx)
	defer cancel()
	if err != nil {
		return nil, err
	}
	return c.entries(ctx, who, target, before, limit)
}

// entries are those of the ledger, as somebody may see them.
func (c *Core) entries(ctx context.Context, who Identity, target, before string, limit int) ([]Entry, error) {
	records, err := c.ledger.entries(ctx, target, before, limit)
	list := make([]Entry, len(records))
	for i, r := range records {
		list[i] = r.Entry
		if who.Role.May(RoleOperator) {
			list[i].Detail = cmp.Or(detailOf(r.request), r.Entry.Detail)
		}
		veilEntry(who, &list[i])
	}
	return list, err
}
