package consume

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
)

// State is the state of a consumer. Package amqpx documents the values.
type State string

// States of a consumer.
const (
	Starting  State = "starting"
	Consuming State = "consuming"
	Down      State = "down"
	Paused    State = "paused"
	Ending    State = "ending"
)

// Stats is a snapshot of a consumer. Package amqpx documents the fields.
type Stats struct {
	Queue string
	State State
	Since time.Time
	Err   error

	Connection *wire.Status // the consumer's own connection; nil while the shared one is used

	Running, Concurrency      int
	Blocked                   int
	BlockedSince              time.Time
	Held, Waiting, Settling   int
	Prefetch                  int
	Oldest, Begun             time.Time
	Lateness                  time.Duration
	Returned, Handled, Failed uint64
}

// consumerState is a consumer's state, when it began and the error that caused it.
type consumerState struct {
	state State
	since time.Time
	err   error
}

// become records the consumer's state. If the state is unchanged, its start time is kept.
func (k *Consumer) become(state State, err error) {
	was := k.state.Load()
	if was != nil && was.state == state && was.err == nil && err == nil {
		return
	}
	next := &consumerState{state, time.Now(), err}
	if was != nil && was.state == state {
		next.since = was.since
	}
	k.state.Store(next)
}

// look records the numbers of buffered messages for stats. Only the intake calls it.
func (k *Consumer) look(b *buffer, prefetch int) {
	k.waiting.Store(int64(b.count - len(b.held)))
	k.held.Store(int64(len(b.held)))
	k.prefetch.Store(int64(prefetch))
	oldest := int64(0)
	if at := b.oldest(); !at.IsZero() && k.state.Load().state != Paused {
		oldest = at.UnixNano()
	}
	k.oldest.Store(oldest)
}

func (k *Consumer) stats() Stats {
	at := k.state.Load()
	s := Stats{
		Queue: k.set.Queue, State: at.state, Since: at.since, Err: at.err,
		Running: int(k.running.Load()), Concurrency: k.set.Concurrency,
		Waiting: int(k.waiting.Load()), Settling: int(k.settling.Load()), Prefetch: int(k.prefetch.Load()),
		Held: int(k.held.Load()), Returned: k.returned.Load(),
		Oldest: instantOf(k.oldest.Load()), Begun: instantOf(k.begunAt.Load()), Lateness: time.Duration(k.lateness.Load()),
		Handled: k.handled.Load(), Failed: k.failed.Load(),
	}
	if b := k.blocked.state.Load(); b != nil {
		s.Blocked, s.BlockedSince = b.count, b.since
		if s.State == Consuming {
			s.Err = b.err
		}
	}
	if own := k.own.Load(); own != nil {
		connection := own.Status()
		s.Connection = &connection
	}
	return s
}

// instantOf converts Unix nanoseconds to a time. 0 becomes the zero time.
func instantOf(nano int64) time.Time {
	if nano == 0 {
		return time.Time{}
	}
	return time.Unix(0, nano)
}
