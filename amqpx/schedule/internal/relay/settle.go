package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// markTimeout bounds the statements that settle a batch.
const markTimeout = 15 * time.Second

// MarkSent records confirmed publishes. A row that has changed since the claim has a different version, so it is not
// updated, and its task will be sent again. A row that a handler has locked is skipped, because the handler itself
// updates the row: it marks the task as done, or it records a failure, which also marks the task as sent.
func (r *Relay) MarkSent(ctx context.Context, list []*rows.Task) error {
	pauses := make([]time.Duration, r.MaxSends)
	for n := range pauses {
		pauses[n] = r.Grace << n
	}
	defer polling.Wrote(r.DB.DB)
	return r.settle(ctx, list, rows.MarkSent(r.Poller.Now(), pauses))
}

// fate is the decision about a task that could not be sent: the task fails, or is retried later.
type fate struct {
	cause  string
	failed bool
	until  time.Time // the task is not claimed again before that time
}

// fateOf decides whether and when a task is retried. The parameter retry is the time at which the task's target is
// tried again.
func (r *Relay) fateOf(t *rows.Task, err error, retry, now time.Time) fate {
	f := fate{cause: rows.ErrorText(withoutID(err))}
	switch judge(err) {
	case impossible:
		f.failed = true
	case destination:
		switch {
		case gone(err) && t.Failures+1 >= r.MaxSendFailures:
			f.failed = true
		case !gone(err) && !retry.IsZero():
			f.until = retry
		default:
			f.until = now.Add(polling.Backoff(firstPause, t.Failures, longestDestinationPause))
		}
	default:
		f.until = now.Add(polling.Backoff(firstPause, t.Failures, longestBrokerPause))
	}
	return f
}

// SettleFailures releases tasks whose send failed, so that they are claimed again later, or marks them as failed. It
// continues even if ctx ends. Tasks with the same fate share a statement and a log line, and SendFailed is called for
// each task.
func (r *Relay) SettleFailures(ctx context.Context, failures map[*rows.Task]error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	now := r.Poller.Now()
	groups := map[fate][]*rows.Task{}
	for t, err := range failures {
		f := r.fateOf(t, err, r.backoffs.retry(targetOf(t)), now)
		groups[f] = append(groups[f], t)
	}
	var errs []error
	for f, list := range groups {
		switch {
		case list[0].Bad != nil:
			errs = append(errs, r.failUnreadable(ctx, list, f.cause))
		case f.failed:
			errs = append(errs, r.settle(ctx, list, rows.FailUnsendable(f.cause, now)))
		default:
			errs = append(errs, r.settle(ctx, list, rows.GiveBack(f.cause, now, f.until)))
		}
		r.Log.Warn("tasks could not be sent", zap.Int("tasks", len(list)), zap.String("first", list[0].ID), zap.Bool("failed", f.failed), zap.String("error", f.cause))
		for _, t := range list {
			r.SendFailed(t, failures[t], f.failed)
		}
	}
	return errors.Join(errs...)
}

// failUnreadable marks tasks whose rows cannot be read as failed.
func (r *Relay) failUnreadable(ctx context.Context, list []*rows.Task, cause string) error {
	for _, t := range list {
		err := r.DB.Transact(ctx, func(c rows.Conn) error { return c.FailUnreadable(ctx, t.ID, cause, r.Poller.Now().UnixMilli()) })
		if err != nil {
			return fmt.Errorf("marking task %q as failed: %w", t.ID, err)
		}
	}
	return nil
}

// settling is a pending change of rows that this relay has claimed.
type settling struct {
	claimed
	ids    []string
	change rows.Assignment
	until  time.Time // when the lease may end, after which another relay may own the rows
}

// settleTries is the number of times that settle tries to change rows that are locked. A short lock belongs to the
// claim of another relay, so trying again immediately usually succeeds. A longer lock belongs to a handler. The relay
// does not wait for it, and tries again before its next batch.
const settleTries = 3

// claimed contains the values that, in addition to the id, must still be the same in the row as in the claimed task.
type claimed struct{ version, lease int64 }

// settle applies a change to tasks. It uses one statement for each version, and nearly all tasks have version 1. A row
// whose version has changed since the claim, or that another program has deleted and inserted again, stays as it is.
func (r *Relay) settle(ctx context.Context, list []*rows.Task, change rows.Assignment) error {
	groups := map[claimed][]string{}
	for _, t := range list {
		c := claimed{t.Version, t.Lease}
		groups[c] = append(groups[c], t.ID)
	}
	for c, ids := range groups {
		x := settling{c, ids, change, r.Poller.Now().Add(r.Lease - r.PublishTimeout)}
		if err := r.settleFree(ctx, &x, settleTries); err != nil {
			return err
		}
		if len(x.ids) > 0 {
			r.leave(x)
		}
	}
	return nil
}

// leave stores a change for settleHeld.
func (r *Relay) leave(x settling) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, x)
}

// settleHeld retries the changes of rows that were locked when settle tried.
func (r *Relay) settleHeld(ctx context.Context, tries int) error {
	r.mu.Lock()
	held := r.held
	r.held = nil
	r.mu.Unlock()
	var errs []error
	for _, x := range held {
		errs = append(errs, r.settleFree(ctx, &x, tries))
		if len(x.ids) > 0 && r.Poller.Now().Before(x.until) {
			r.leave(x)
		}
	}
	return errors.Join(errs...)
}

// settleFree changes the rows of x that are not locked. Rows that were locked at every try stay in x.
func (r *Relay) settleFree(ctx context.Context, x *settling, tries int) error {
	for try := 1; ; try++ {
		var held []string
		err := r.DB.Transact(ctx, func(c rows.Conn) (err error) {
			held, err = c.Settle(ctx, x.version, x.lease, x.ids, x.change)
			return err
		})
		if err != nil {
			return fmt.Errorf("marking tasks: %w", err)
		}
		if x.ids = held; len(held) == 0 || try >= tries {
			return nil
		}
		if err := polling.Sleep(ctx, polling.Backoff(5*time.Millisecond, try-1, time.Second)); err != nil {
			return err
		}
	}
}
