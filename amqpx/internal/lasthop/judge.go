// Package lasthop decides when a consumer may handle a message that has left the broker's
// delay queues. A producer may have asked for it some time before its due instant (the
// lead), and a broker whose clock is wrong may have let it go too early. Three clocks meet
// here, and each may be wrong: the consumer's own, the publisher's and the broker's. The
// package does no I/O and reads no clock.
//
// The rules, for what clocks may differ by because seconds are cut and NTP corrects (Allowed):
//
//   - Early by no more than its lead and that: hold it until its instant, by the own clock.
//   - Earlier, and another clock explains it: trust the broker, which has waited for as long as
//     it was asked to, and hold the message for its lead only. The own clock is wrong if a
//     publisher's and a broker's were both ahead of it, in this message or within 10 minutes;
//     one of them alone is wrong itself. A publisher whose clock is ahead explains a delay, which
//     is the same by every clock, but no instant.
//   - Earlier, and nothing explains it: the broker let it go. Send it back for the rest; after
//     five times hold it for a minute before, so that no policy makes a loop.
//   - Later than its lead by more than that: the own clock may be ahead, or the publisher's behind,
//     so the lead counts from the arrival, unless clocks agreed within 10 minutes and the broker let
//     it go as planned; then it waited behind others.
//
// A step of the own clock, detected by the monotonic one, forgets what was seen.
package lasthop

import (
	"sync"
	"time"
)

// Bounds of what clocks may differ by, and of what waits in a consumer.
const (
	// Allowed is by how much clocks may differ before one of them counts as wrong. A
	// message that is early by no more than its lead and this waits in the consumer.
	Allowed = 2 * time.Second
	// MaxHold is the longest wait in a consumer.
	MaxHold = time.Minute
	// maxOffset bounds what a message may say of the clock of its due instant.
	maxOffset = 24 * time.Hour
	// patience is how often a message may come back before it waits here for long.
	patience = 5
	// memory is how long a difference between clocks that was seen counts.
	memory = 10 * time.Minute
)

// Arrival is what a message says of its instants.
type Arrival struct {
	Due      time.Time     // by the publisher's clock plus Offset
	Offset   time.Duration // of the clock of Due, such as a database's
	Absolute bool          // the publisher asked for an instant; else for a delay, which no clock changes
	Lead     time.Duration // how long before Due the broker was to deliver it
	Sent     time.Time     // by the publisher's clock, in whole seconds; zero for unknown
	Expired  time.Time     // by the broker's clock, in whole seconds, when the last delay ended; zero for none
	Returned int           // how often consumers have sent it back
}

// Judge compares clocks over the messages that a process receives. The zero value is
// ready; it is safe for concurrent use.
type Judge struct {
	mu     sync.Mutex
	base   time.Time // when the process began, by the own clock as it was first seen or last set
	agreed time.Time // when the own clock last agreed with a broker's
	behind time.Time // when it was last seen behind a broker's and a publisher's
	since  time.Time // since when it is
	by     time.Duration
}

// Wait returns how long a message that arrives now waits in the consumer, and whether it is
// then sent back to the broker for the rest of its delay, instead of being handled. The process
// has been up for as long as its monotonic clock says.
func (j *Judge) Wait(a Arrival, now time.Time, up time.Duration) (wait time.Duration, again bool) {
	if a.Due.IsZero() {
		return 0, false
	}
	due := a.Due
	if a.Offset.Abs() <= maxOffset {
		due = due.Add(-a.Offset)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.look(a, now, up)
	early := due.Sub(now)
	switch {
	case a.immediate(due):
		return 0, false
	case early < a.rest(due)-Allowed && !j.queued(a, due, now):
		return a.rest(due), false // a clock is wrong
	case early <= a.Lead+Allowed:
		return max(0, early), false
	case j.trustsBroker(a, now):
		return a.Lead, false
	case a.Returned >= patience: // something sends it here again and again, as a policy does
		if early <= MaxHold {
			return early, false
		}
		return MaxHold, true
	}
	return 0, true
}

// immediate reports whether nothing has delayed the message.
func (a Arrival) immediate(due time.Time) bool {
	return a.Expired.IsZero() && a.Lead == 0 && !a.Absolute && !a.Sent.IsZero() && due.Sub(a.Sent) < time.Second
}

// queued reports whether a message that comes later than was planned is known to have waited behind
// others: the clocks agree, and the broker let it go as planned.
func (j *Judge) queued(a Arrival, due, now time.Time) bool {
	return recent(j.agreed, now) && within(a.Expired.Sub(due.Add(-a.Lead)), time.Second+Allowed)
}

// rest is what the broker has left of the wait: the lead, or the whole of a shorter one.
func (a Arrival) rest(due time.Time) time.Duration {
	if !a.Sent.IsZero() {
		return max(0, min(a.Lead, due.Sub(a.Sent)))
	}
	return a.Lead
}

// trustsBroker reports whether a message that is early by the own clock is not: another
// clock is wrong, and the broker has waited for as long as it was asked to.
func (j *Judge) trustsBroker(a Arrival, now time.Time) bool {
	if !a.Expired.IsZero() && recent(j.behind, now) && a.Expired.Sub(now) > Allowed {
		return true // the own clock is wrong
	}
	// The publisher's clock is ahead, and a delay is the same by every clock.
	return !a.Absolute && a.Sent.Sub(now) > Allowed
}

// look takes in what a message tells of the clocks.
func (j *Judge) look(a Arrival, now time.Time, up time.Duration) {
	now = now.Round(0) // by the wall clock alone
	if began := now.Add(-up); j.base.IsZero() || !within(began.Sub(j.base), Allowed) {
		j.base, j.agreed, j.behind, j.since = began, time.Time{}, time.Time{}, time.Time{}
	}
	if a.Expired.IsZero() {
		return
	}
	switch ahead := a.Expired.Sub(now); {
	case ahead > Allowed && a.Sent.Sub(now) > Allowed:
		if !recent(j.behind, now) {
			j.since = now
		}
		j.behind, j.by = now, ahead
	case within(ahead, time.Second+Allowed):
		j.agreed, j.behind = now, time.Time{}
	}
}

// Behind reports whether the own clock is behind the brokers' and the publishers', since
// when that is seen, and by how much it was last.
func (j *Judge) Behind(now time.Time) (by time.Duration, since time.Time, behind bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.by, j.since, recent(j.behind, now)
}

func recent(at, now time.Time) bool { return !at.IsZero() && now.Sub(at) <= memory }

func within(d, bound time.Duration) bool { return d.Abs() <= bound }

// EarlyError is the error of a handler that knows better than the consumer that the instant of
// its message is to come: it asks for the message to be sent back for the rest.
type EarlyError struct {
	Offset time.Duration // the clock of the due instant minus this process's
}

func (e *EarlyError) Error() string { return "too early by the clock of its due instant" }
