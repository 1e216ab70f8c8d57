package schedule

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// attempt is the record of one run of the handler that is written before the run, so that the attempt counts even if it
// crashes its process. Its row in rabbitdelay_effects contains the attempt's token until the attempt has an outcome.
type attempt struct {
	rows.EffectKey

	token string
	lease time.Duration // 0 for an attempt that runs in a transaction, which locks a row of the task instead
	clock time.Time     // the database's time at begun
	begun time.Time

	number  int    // the attempt's number, counted from 1; at least the message's Attempt
	before  int    // number of attempts that were recorded before it
	release func() // leaves the lane for suspects (see suspected); nil if the attempt is not in it
}

func newAttempt(d *amqpx.Delivery, created int64, lease time.Duration) *attempt {
	return &attempt{EffectKey: rows.EffectKey{Task: d.ID, Created: created, Version: d.Version, Queue: d.Queue}, token: rand.Text(), lease: lease}
}

// suspect records an attempt at a redelivered message before it runs, because the message may have crashed the process
// that handled it before. It returns nil, nil if the message will have no effect. The fence then determines the reason.
func (h *handler) suspect(ctx context.Context, d *amqpx.Delivery) (*attempt, error) {
	c, err := h.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	now := h.nowMilli()
	row, err := c.Find(ctx, d.ID, now, rows.Unlocked)
	if err != nil || !row.Open(fenceOf(d, now)) {
		return nil, err
	}
	a := newAttempt(d, row.Created, 0)
	err = h.enter(ctx, a, d)
	if _, settled := errors.AsType[*skipError](err); settled {
		return nil, nil //nolint:nilnil // the fence determines the reason
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// enter records the attempt with beginAttempt. If the attempt may run only in the lane for suspects, enter first waits
// for that lane.
func (h *handler) enter(ctx context.Context, a *attempt, d *amqpx.Delivery) error {
	err := h.beginAttempt(ctx, a, d)
	if errors.Is(err, errSuspect) {
		if a.release, err = suspectLane(ctx); err == nil {
			err = h.beginAttempt(ctx, a, d)
		}
	}
	if err != nil {
		a.leaveLane()
	}
	return err
}

var errSuspect = errors.New("an earlier attempt ended without an outcome")

// beginAttempt records the attempt, and acquires the lease if the attempt needs one. It returns one of these errors if
// the attempt may not run:
//
//   - *skipError, or another error of whyNot: the message does not pass the fence
//   - *heldError: another attempt holds the lease
//   - errSuspect: the attempt may run only in the lane for suspects
//   - *poisonError: MaxAttempts attempts have already been recorded
func (h *handler) beginAttempt(ctx context.Context, a *attempt, d *amqpx.Delivery) error {
	var over error // the error to return after the transaction has been committed
	err := h.db.Transact(ctx, func(c rows.Conn) (err error) {
		over = nil
		a.begun = time.Now()
		if a.clock, err = c.Clock(ctx); err != nil {
			return err
		}
		now := a.clock.UnixMilli()
		if a.lease > 0 {
			a.Created, err = h.startLease(ctx, c, d, now)
			if skip, ok := errors.AsType[*skipError](err); ok && skip.reason == SkipExpired {
				over = skip
				return nil
			}
			if err != nil {
				return err
			}
		}
		earlier, err := c.LockRecord(ctx, a.EffectKey, now)
		if err != nil {
			return err
		}
		a.before = earlier.Attempts
		switch rest := time.UnixMilli(earlier.Lease).Sub(a.clock); {
		case earlier.Done:
			return &skipError{SkipDuplicate}
		case rest > 0:
			return &heldError{rest}
		case earlier.Token != "" && a.release == nil:
			return errSuspect
		case d.MaxAttempts > 0 && a.before >= d.MaxAttempts:
			return &poisonError{id: a.Task, attempts: a.before}
		}
		return a.save(ctx, c, max(a.before+1, d.Attempt), earlier.Token != "")
	})
	if err == nil {
		err = over
	}
	return err
}

// save writes the attempt into its row. If died is true, the previous attempt ended without an outcome, and save also
// records that in the task's row.
func (a *attempt) save(ctx context.Context, c rows.Conn, number int, died bool) error {
	a.number = number
	now, until := a.clock.UnixMilli(), int64(0)
	if a.lease > 0 {
		until = a.clock.Add(a.lease).UnixMilli()
	}
	err := c.BeginAttempt(ctx, a.EffectKey, number, a.token, until, now)
	if err != nil || !died {
		return err
	}
	return c.RecordDeath(ctx, a.EffectKey, a.before, (&poisonError{id: a.Task, attempts: a.before}).Error(), now)
}

// leaveLane leaves the lane for suspects. It does nothing for a nil attempt.
func (a *attempt) leaveLane() {
	if a != nil && a.release != nil {
		a.release()
	}
}

// suspected is true while this process runs a suspect, a message whose previous attempt ended without an outcome. Most
// suspects were only being handled at the same time as the message that crashed the process. Running suspects one at a
// time shows which of them it was.
var suspected atomic.Bool

// laneWait is how long a suspect keeps other suspects waiting. If it runs for longer, it is assumed not to crash the
// process. laneLook is how often waiting suspects check the lane.
const (
	laneWait = time.Minute
	laneLook = 20 * time.Millisecond
)

// suspectLane waits until no other suspect runs, but at most for laneWait. The caller calls release when its own suspect
// has ended, so that the next one can start.
func suspectLane(ctx context.Context) (release func(), err error) {
	patience := time.NewTimer(laneWait)
	defer patience.Stop()
	look := time.NewTicker(laneLook)
	defer look.Stop()
	for !suspected.CompareAndSwap(false, true) {
		select {
		case <-look.C:
		case <-patience.C:
			return func() {}, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another message that may have crashed its process: %w", ctx.Err())
		}
	}
	return func() { suspected.Store(false) }, nil
}

// startLease marks the task as running, unless it is already running, and returns the time at which the task was
// created. If the message may not take effect, it returns the reason as an error, such as a *skipError.
func (h *handler) startLease(ctx context.Context, c rows.Conn, d *amqpx.Delivery, now int64) (created int64, err error) {
	defer polling.Wrote(h.db.DB)
	f := fenceOf(d, now)
	if err := c.StartRunning(ctx, f, now); err != nil {
		return 0, err
	}
	task, err := c.Find(ctx, d.ID, now, rows.Unlocked)
	if err != nil {
		return 0, err
	}
	if task.Late(f) {
		if err := c.Expire(ctx, f, now); err != nil {
			return 0, err
		}
		return 0, &skipError{SkipExpired}
	}
	if task.Is(f) && task.Due <= f.Due && (task.Status == rows.Running || task.Status == rows.Done && !task.ToQueue) {
		return task.Created, nil
	}
	return 0, skipped(task, f, d)
}
