package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Sender publishes messages; see schedule.Sender.
type Sender interface {
	SendBatch(ctx context.Context, msgs []amqpx.Message) error
}

// Config is the configuration of a Relay. schedule.Config documents the settings.
type Config struct {
	DB     *rows.DB
	Sender Sender
	Poller *polling.Poller
	Log    *zap.Logger
	Report func(err error) // called with the result of every step, nil after a success
	// ReportRateLimit, optional, is called after each poll. Its argument lists the rate limits that another session
	// keeps locked, or is nil if there are none.
	ReportRateLimit func(err error)

	Horizon, PollInterval, PublishTimeout, Lease, Grace   time.Duration
	Lead                                                  time.Duration // the longest lead of the sender's messages
	Batch, BatchBytes, Workers, MaxSendFailures, MaxSends int
	Relayed                                               func(n int, resent bool)
	SendFailed                                            func(t *rows.Task, err error, failed bool)
}

// Relay publishes the due tasks of one database.
type Relay struct {
	Config

	backoffs *backoffs
	next     polling.Instant   // when to poll for the tasks that the last poll did not claim; see plan
	regular  polling.Instant   // when to claim the tasks that are not urgent; see plan
	took     atomic.Int64      // duration of the last step that sent tasks, in nanoseconds
	idled    time.Time         // when a poll last found no task to claim
	claiming chan struct{}     // contains one element during a claim; a mutex would stop the clock of a synctest bubble
	got      map[rows.Lane]int // number of tasks that each lane got in the last claim, for a fair order
	more     atomic.Bool       // whether the last claim of new tasks left some unclaimed
	gates    atomic.Pointer[gates]
	stuck    stuck
	opens    polling.Instant // when to poll a lane with a rate limit again

	publishing      sync.WaitGroup
	publishingBytes atomic.Int64 // total bytes of the bodies that are being published

	mu   sync.Mutex
	held []settling // changes of rows that are locked by other transactions
}

// New returns a relay that does not run yet.
func New(c Config) *Relay {
	return &Relay{Config: c, backoffs: newBackoffs(c.Batch), claiming: make(chan struct{}, 1), got: map[rows.Lane]int{}}
}

// FirstLook is the pause before the second poll after a wake-up by a transaction that may not be committed yet. Each
// further pause is twice as long, up to PollInterval.
const FirstLook = 4 * time.Millisecond

// Loop claims and publishes tasks until ctx ends. Several loops may run concurrently.
func (r *Relay) Loop(ctx context.Context) {
	pause, longest := r.PollInterval, r.Poller.Longest(r.PollInterval)
	for {
		written := r.Poller.Written()
		found, sent, err := r.step(ctx, false)
		if ctx.Err() != nil {
			return
		}
		r.Report(err)
		if err == nil && sent > 0 && r.more.Load() {
			continue
		}
		if err != nil || (found > 0 && sent == 0) {
			pause = r.PollInterval // after a fault, do not try again in a tight loop
		}
		wait := pause
		if err == nil { // after an error, r.next and r.opens may be outdated
			wait = r.idle(pause)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-r.Poller.Woken:
				waiting = false
				if r.Poller.Uncommitted.Swap(false) {
					pause = FirstLook
				}
			case <-written:
				pause, written = r.PollInterval, nil
				wait = min(wait, pause)
			case <-time.After(wait):
				pause, waiting = min(2*pause, longest), false
			}
		}
	}
}

// idle returns how long the relay expects to have nothing to do, at most pause.
func (r *Relay) idle(pause time.Duration) time.Duration {
	now := r.Poller.Now()
	wait := r.next.Until(now, pause)
	if next := r.backoffs.next(now); !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	return r.opens.Until(now, wait)
}

// idlePause is the shortest time between a poll that found no task to claim and the next poll. It limits the number of
// polls while tasks that are not urgent are written continuously.
const idlePause = 10 * time.Millisecond

// pace waits until a poll may follow the last one.
func (r *Relay) pace(ctx context.Context) error {
	if r.idled.IsZero() || r.Poller.Virtual() {
		return ctx.Err()
	}
	return polling.Sleep(ctx, min(idlePause, r.notice()/4)-time.Since(r.idled))
}

// Step claims one batch, publishes it and marks its rows. It returns how many tasks were claimed and how many of those
// were sent. It completes a claimed batch even if ctx ends, so that a normal shutdown leaves no task under a lease.
// After a crash the tasks stay claimed until the lease ends, and are then published again.
func (r *Relay) Step(ctx context.Context) (found, sent int, err error) { return r.step(ctx, true) }

// step is like Step. If all is false, it claims nothing while no task has to be sent yet.
func (r *Relay) step(ctx context.Context, all bool) (found, sent int, err error) {
	began := time.Now()
	var list []*rows.Task
	err = r.Poller.Answered(ctx, func(ctx context.Context) error {
		if err := r.settleHeld(ctx, 1); err != nil {
			return err
		}
		list, err = r.take(ctx, all)
		return err
	})
	if err == nil {
		r.reportStuck(ctx)
	}
	if err != nil || len(list) == 0 {
		return 0, 0, err
	}
	sent, err = r.PublishClaimed(context.WithoutCancel(ctx), rows.ToSend, list)
	r.took.Store(int64(time.Since(began)))
	return len(list), sent, err
}

// lastTries is the number of times that Finish tries to mark rows that are locked by other transactions. The tries take
// a third of a second.
const lastTries = 7

// Finish waits for the batches that are being published, and marks the rows that were locked earlier. Rows that are
// still locked are published again when the lease ends.
func (r *Relay) Finish(ctx context.Context) error {
	r.WaitPublished()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	return r.settleHeld(ctx, lastTries)
}

// WaitPublished waits until all batches are published and their outcomes are recorded.
func (r *Relay) WaitPublished() { r.publishing.Wait() }
