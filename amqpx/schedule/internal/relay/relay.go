package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Sender publishes; see schedule.Sender.
type Sender interface {
	SendBatch(ctx context.Context, msgs []amqpx.Message) error
}

// Config is what a relay is given. schedule.Config documents the settings.
type Config struct {
	DB     *rows.DB
	Sender Sender
	Pace   *pace.Pace
	Log    *zap.Logger
	Report func(err error) // the outcome of a try
	// ReportCeiling, optional, gets after each look which ceilings somebody keeps locked.
	ReportCeiling func(err error)

	Horizon, PollInterval, PublishTimeout, Lease, Grace   time.Duration
	Batch, BatchBytes, Workers, MaxSendFailures, MaxSends int
	Relayed                                               func(n int, resent bool)
	SendFailed                                            func(t *rows.Task, err error, failed bool)
}

// Relay relays the tasks of one database.
type Relay struct {
	Config

	troubles *troubles
	ahead    pace.Instant  // the due instant of what is to be sent next
	claiming chan struct{} // one element while a claim is on its way; no mutex, for which a test's bubble would stand still
	got      map[rows.Lane]int
	more     atomic.Bool // the last claim of new tasks left something
	gates    atomic.Pointer[gates]
	stuck    stuck
	opens    pace.Instant // when a lane with a ceiling is to be looked at again

	flying sync.WaitGroup
	aloft  atomic.Int64 // bytes of bodies in flights

	mu   sync.Mutex
	held []settling // rows to be marked when who holds them lets go
}

// New makes a relay.
func New(c Config) *Relay {
	return &Relay{Config: c, troubles: newTroubles(c.Batch), claiming: make(chan struct{}, 1), got: map[rows.Lane]int{}}
}

// FirstLook is the pause between the looks after a wake; it doubles up to PollInterval.
const FirstLook = 4 * time.Millisecond

// Loop relays until ctx ends. Several loops may run at once.
func (r *Relay) Loop(ctx context.Context) {
	pause, longest := r.PollInterval, r.Pace.Longest(r.PollInterval)
	for {
		written := r.Pace.Written()
		found, sent, err := r.Step(ctx)
		if ctx.Err() != nil {
			return
		}
		r.Report(err)
		if err == nil && sent > 0 && r.more.Load() {
			continue
		}
		if err != nil || (found > 0 && sent == 0) {
			pause = r.PollInterval // do not spin on a fault
		}
		wait := pause
		if err == nil { // or what is known is of an earlier look
			wait = r.idle(pause)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-r.Pace.Woken:
				pause, waiting = FirstLook, false
			case <-written:
				pause, written = r.PollInterval, nil
				wait = min(wait, pause)
			case <-time.After(wait):
				pause, waiting = min(2*pause, longest), false
			}
		}
	}
}

// idle is how long there is nothing to do, as far as is known, and at most pause.
func (r *Relay) idle(pause time.Duration) time.Duration {
	now := r.Pace.Now()
	wait := r.ahead.Until(now.Add(r.Horizon), pause)
	if next := r.troubles.next(now); !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	return r.opens.Until(now, wait)
}

// Step claims one batch, publishes it and marks it. It returns how many were claimed and
// how many of those were sent. A batch that is claimed is carried to its end also when ctx
// ends, so that a clean stop leaves no task under a lease; a crash leaves them until the
// lease ends, and they are published again.
func (r *Relay) Step(ctx context.Context) (found, sent int, err error) {
	var list []*rows.Task
	err = r.Pace.Answered(ctx, func(ctx context.Context) error {
		if err := r.settleHeld(ctx, 1); err != nil {
			return err
		}
		list, err = r.Take(ctx)
		return err
	})
	if err == nil {
		r.reportStuck(ctx)
	}
	if err != nil || len(list) == 0 {
		return 0, 0, err
	}
	sent, err = r.Launch(context.WithoutCancel(ctx), rows.ToSend, list)
	return len(list), sent, err
}

// lastTries is how often the rows that others hold are looked at when Run ends, within a
// third of a second.
const lastTries = 7

// Finish waits for what is on its way, and settles what is left. What cannot be marked now
// is published again when the lease ends.
func (r *Relay) Finish(ctx context.Context) error {
	r.Landed()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	return r.settleHeld(ctx, lastTries)
}

// Landed waits until nothing is on its way.
func (r *Relay) Landed() { r.flying.Wait() }
