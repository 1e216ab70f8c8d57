// Package lasthop decides when a consumer may handle a message that has left the broker's
// delay queues. A producer may have asked for it some time before its due instant (the
// lead), and a broker whose clock is wrong may have let it go too early. Three clocks meet
// here, and each may be wrong: the consumer's own, the publisher's and the broker's. The
// package does no I/O and reads no clock.
//
// The rules, for clocks that may differ by up to Allowed because seconds are cut and NTP corrects:
//
//   - Early by no more than its lead and that: hold it until its instant, by the own clock.
//   - Earlier, and another clock explains it: trust the broker, which has waited for as long as
//     it was asked to, and hold the message for what is left of its lead. The own clock is wrong if a
//     publisher's and a broker's were both ahead of it, in this message or within 10 minutes;
//     one of them alone is wrong itself. A publisher whose clock is ahead explains a delay, which
//     is the same by every clock, but no instant.
//   - Earlier, and nothing explains it: the broker let it go. Send it back for the rest; after
//     five times hold it for a minute before, so that no policy makes a loop.
//   - Later than what is left of its lead by more than that: the own clock may be ahead, or the
//     publisher's behind. Hold it for what is left of its lead.
//
// What is left of a lead is counted by the broker's clock, and not from the arrival: the message may
// have waited behind others, or another consumer may have held it and given it back. The message says
// when the broker let it go, by the broker's clock. What that clock shows now is at least the latest
// instant that it has shown in a message, or in an answer (Told), and the time that has passed since
// by the monotonic clock. So a wrong own clock makes no message early, and no message is held longer
// than its lead because it comes back.
//
// A step of the own clock, detected by the monotonic one, forgets what was seen of it.
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
	// Patience is how often a message may come back before it waits here for long.
	Patience = 5
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
	Again    bool          // it was handed out before
}

// Decision says what a consumer does with a message.
type Decision struct {
	Wait   time.Duration // before anything else
	Return bool          // then it goes back to the broker for the rest of its delay, and is not handled
	// Doubt reports that the message is later than was planned by the own clock, and is held because that
	// clock may be wrong. An answer of the broker about its clock (Told) may shorten the wait.
	Doubt bool
}

// Judge compares clocks over the messages that a process receives. The zero value is
// ready; it is safe for concurrent use.
type Judge struct {
	mu     sync.Mutex
	base   time.Time // when the process began, by the own clock as it was first seen or last set
	broker reading   // the latest that is known of the broker's clock
	plans  time.Time // when a broker last let a message go as its publisher had planned
	apart  time.Time // when one last did so later: the publisher's clock may be behind
	behind time.Time // when the own clock was last seen behind a broker's and a publisher's
	since  time.Time // since when it is
	by     time.Duration
}

// reading is what a broker's clock has shown, in whole seconds, when the process had been up for some time.
type reading struct {
	shows time.Time // zero for nothing
	up    time.Duration
}

// now returns an instant that the broker's clock has reached. It is not ok if nothing is known, or that
// is too old.
func (r reading) now(up time.Duration) (at time.Time, ok bool) {
	passed := up - r.up
	return r.shows.Add(passed), !r.shows.IsZero() && passed <= memory
}

// Told takes in what a broker has said of its clock.
func (j *Judge) Told(shows time.Time, up time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.read(shows, up)
}

func (j *Judge) read(shows time.Time, up time.Duration) {
	if at, known := j.broker.now(up); !known || shows.After(at) {
		j.broker = reading{shows, up}
	}
}

// Wait decides about a message that arrives now. The process has been up for as long as its monotonic
// clock says.
func (j *Judge) Wait(a Arrival, now time.Time, up time.Duration) Decision {
	if a.Due.IsZero() {
		return Decision{}
	}
	due := a.Due
	if a.Offset.Abs() <= maxOffset {
		due = due.Add(-a.Offset)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.look(a, due, now, up)
	early, left := due.Sub(now), j.left(a, due, up)
	switch {
	case a.immediate(due):
		return Decision{}
	case early < left-Allowed && !j.confirmed(a, now, up):
		return Decision{Wait: left, Doubt: left > 0} // a clock may be wrong
	case early <= a.Lead+Allowed:
		return Decision{Wait: max(0, early)}
	case j.trustsBroker(a, now):
		return Decision{Wait: left}
	case a.Returned < Patience:
		return Decision{Return: true}
	case early <= MaxHold: // something sends it here again and again, as a policy does
		return Decision{Wait: early}
	}
	return Decision{Wait: MaxHold, Return: true}
}

// immediate reports whether nothing has delayed the message.
func (a Arrival) immediate(due time.Time) bool {
	return a.Expired.IsZero() && a.Lead == 0 && !a.Absolute && !a.Sent.IsZero() && due.Sub(a.Sent) < time.Second
}

// left returns what is left of the wait after the broker let the message go: never less than what is, whichever
// clock is wrong but the broker's.
func (j *Judge) left(a Arrival, due time.Time, up time.Duration) time.Duration {
	rest := a.Lead // or the whole of a shorter wait
	if !a.Sent.IsZero() {
		rest = max(0, min(a.Lead, due.Sub(a.Sent)))
	}
	shows, known := j.broker.now(up)
	if a.Expired.IsZero() || !known {
		return rest
	}
	passed := shows.Sub(a.Expired.Add(time.Second)) // whose fraction was cut off
	return max(0, rest-max(0, passed))
}

// confirmed reports whether the own clock may decide about a message of which the broker's does not tell when
// it was let go, because it went straight to its queue. The own clock has to agree with the broker's. No publisher's
// may have been seen behind, and unless the message was handed out before, one has to be known to be right.
func (j *Judge) confirmed(a Arrival, now time.Time, up time.Duration) bool {
	shows, known := j.broker.now(up)
	agree := known && within(now.Sub(shows), Allowed)
	return a.Expired.IsZero() && agree && !recent(j.apart, now) && (a.Again || recent(j.plans, now))
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
func (j *Judge) look(a Arrival, due, now time.Time, up time.Duration) {
	now = now.Round(0) // by the wall clock alone
	if began := now.Add(-up); j.base.IsZero() || !within(began.Sub(j.base), Allowed) {
		j.base, j.plans, j.apart, j.behind, j.since = began, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	}
	if a.Expired.IsZero() {
		return
	}
	j.read(a.Expired, up)
	switch later := a.Expired.Sub(due.Add(-a.Lead)); { // by less than a second more
	case later > Allowed-time.Second:
		j.apart = now
	case later >= -Allowed:
		j.plans = now
	}
	switch ahead := a.Expired.Sub(now); {
	case ahead > Allowed && a.Sent.Sub(now) > Allowed:
		if !recent(j.behind, now) {
			j.since = now
		}
		j.behind, j.by = now, ahead
	case within(ahead, time.Second+Allowed):
		j.behind = time.Time{}
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
