// Package duecheck decides when a consumer may handle a message that has left the broker's delay queues. The producer
// may have asked for delivery some time before the message is due (the lead), and a broker whose clock is wrong may
// have released it too early. Three clocks are involved, the consumer's own, the publisher's and the broker's, and each
// of them may be wrong. The package does no I/O and reads no clock.
//
// The rules are as follows. Clocks may differ by up to Allowed, because timestamps are truncated to seconds and NTP
// corrects clocks.
//
//   - If a message is early by no more than its lead plus Allowed, hold it until it is due by the consumer's own clock.
//   - If it is earlier and another clock explains it, trust the broker, which has waited for as long as requested, and
//     hold the message for the remaining lead. The consumer's clock is assumed to be wrong if both a publisher's and a
//     broker's clock were ahead of it, in this message or within the last 10 minutes. If only one of them was ahead,
//     that one is assumed to be wrong. A publisher whose clock is ahead explains a delay, which has the same length by
//     every clock, but not an absolute time.
//   - If it is earlier and no clock explains it, the broker released it too early. Send it back for the rest of its
//     delay. After it has been sent back five times, hold it until it is due. If that takes longer than a minute, hold
//     it for a minute and send it back again, so that a policy cannot create a fast loop.
//   - If it is later than expected from its remaining lead by more than Allowed, the consumer's clock may be ahead or
//     the publisher's behind. Hold it for the remaining lead.
//
// The remaining lead is computed from the broker's clock and not from the arrival, because the message may have waited
// behind others, or another consumer may have held it and returned it. The message contains the time at which the
// broker released it, by the broker's clock. The broker's clock now shows at least the latest time that it has shown in
// a message or in an answer (Told), plus the time that has passed since then by the monotonic clock. So a wrong clock
// of the consumer does not make a message early, and no message is held longer than its lead because it is redelivered.
//
// A message without that time is held for its whole lead again if it seems late or is redelivered. The clocks of other
// publishers and the broker's clock do not show whether this publisher's clock was right. The publisher cannot detect
// that either. If its machine is suspended for a while, all its clocks are behind by that time, and so is its estimate
// of the broker's clock. So publishers let every message that has a lead pass through a delay queue, except those with
// the very shortest delays.
//
// If the consumer's wall clock is adjusted, which is detected with the monotonic clock, all observations about it are
// discarded.
package duecheck

import (
	"sync"
	"time"
)

// Limits for differences between clocks and for waits in a consumer.
const (
	// Allowed is how much clocks may differ before one of them is assumed to be wrong. A message that is early by no
	// more than its lead plus Allowed waits in the consumer.
	Allowed = 2 * time.Second
	// MaxHold is the longest wait in a consumer.
	MaxHold = time.Minute
	// maxOffset limits the clock offset that a message may state for its due time.
	maxOffset = 24 * time.Hour
	// Patience is the number of times that a message may be sent back before it is held for up to MaxHold.
	Patience = 5
	// memory is how long an observed difference between clocks is remembered.
	memory = 10 * time.Minute
)

// Arrival contains the times and the delivery history that a message carries.
type Arrival struct {
	Due      time.Time     // by the clock that the due time was computed with: the publisher's clock plus Offset
	Offset   time.Duration // how far that clock, such as a database's, is ahead of the publisher's
	Absolute bool          // the publisher asked for a time and not for a delay, whose length every clock agrees on
	Lead     time.Duration // how long before Due the broker was to deliver it
	Sent     time.Time     // by the publisher's clock, in whole seconds; zero if unknown
	Expired  time.Time     // when the last delay ended by the broker's clock, in whole seconds; zero if none
	Returned int           // number of times that consumers have sent it back
}

// Decision is what a consumer should do with a message.
type Decision struct {
	Wait   time.Duration // how long to hold the message before it is handled or returned
	Return bool          // after the wait, return it to the broker for the rest of its delay, unhandled
	// Doubt is true if the consumer's or the publisher's clock may be wrong. The message is then held for the remaining
	// lead. If the broker reports its clock (Told), the wait may become shorter.
	Doubt bool
}

// Judge compares clocks across the messages that a process receives. The zero value is ready to use. It is safe for
// concurrent use.
type Judge struct {
	mu     sync.Mutex
	base   time.Time     // when the process started, by the consumer's clock as first seen or last set
	broker reading       // the latest reading of the broker's clock
	behind time.Time     // when the consumer's clock was last seen behind both a broker's and a publisher's
	since  time.Time     // when it was first seen behind
	by     time.Duration // how far it was last seen behind
}

// reading is the time that a broker's clock has shown, in whole seconds, and the process's uptime at that moment.
type reading struct {
	shows time.Time // zero if unknown
	up    time.Duration
}

// now returns a time that the broker's clock has reached. It reports false if there is no reading or the reading is too
// old.
func (r reading) now(up time.Duration) (at time.Time, ok bool) {
	passed := up - r.up
	return r.shows.Add(passed), !r.shows.IsZero() && passed <= memory
}

// Told records the time that a broker's clock has shown.
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

// Wait decides what to do with a message that arrives now. The parameter up is the process's uptime by the monotonic
// clock.
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
	j.look(a, now, up)
	early, left := due.Sub(now), j.left(a, due, up)
	switch {
	case a.immediate(due):
		return Decision{}
	case early < left-Allowed:
		return Decision{Wait: left, Doubt: left > 0} // a clock may be wrong
	case early <= a.Lead+Allowed:
		return Decision{Wait: max(0, early)}
	case j.trustsBroker(a, now):
		return Decision{Wait: left, Doubt: left > 0}
	case a.Returned < Patience:
		return Decision{Return: true}
	case early <= MaxHold: // something, such as a policy, makes the broker release it too early each time
		return Decision{Wait: early}
	}
	return Decision{Wait: MaxHold, Return: true}
}

// immediate reports whether the message was not delayed at all.
func (a Arrival) immediate(due time.Time) bool {
	return a.Expired.IsZero() && a.Lead == 0 && !a.Absolute && !a.Sent.IsZero() && due.Sub(a.Sent) < time.Second
}

// left returns how much of the lead is left, given the time that has passed since the broker released the message. It
// never returns too little, unless the broker's clock is wrong.
func (j *Judge) left(a Arrival, due time.Time, up time.Duration) time.Duration {
	rest := a.Lead // or the whole delay if that is shorter
	if !a.Sent.IsZero() {
		rest = max(0, min(a.Lead, due.Sub(a.Sent)))
	}
	shows, known := j.broker.now(up)
	if a.Expired.IsZero() || !known {
		return rest
	}
	passed := shows.Sub(a.Expired.Add(time.Second)) // the fraction of a second was truncated
	return max(0, rest-max(0, passed))
}

// trustsBroker reports whether a message only seems early, because the consumer's or the publisher's clock is wrong, and
// the broker has waited for as long as requested.
func (j *Judge) trustsBroker(a Arrival, now time.Time) bool {
	if !a.Expired.IsZero() && recent(j.behind, now) && a.Expired.Sub(now) > Allowed {
		return true // the consumer's clock is wrong
	}
	// The publisher's clock is ahead. A delay has the same length by every clock.
	return !a.Absolute && a.Sent.Sub(now) > Allowed
}

// look records what a message shows about the clocks.
func (j *Judge) look(a Arrival, now time.Time, up time.Duration) {
	now = now.Round(0) // drop the monotonic reading, to notice that the wall clock was adjusted
	if began := now.Add(-up); j.base.IsZero() || !within(began.Sub(j.base), Allowed) {
		j.base, j.behind, j.since = began, time.Time{}, time.Time{}
	}
	if a.Expired.IsZero() {
		return
	}
	j.read(a.Expired, up)
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

// Behind reports whether the consumer's clock is behind the brokers' and the publishers' clocks, when that was first
// observed, and the latest difference.
func (j *Judge) Behind(now time.Time) (by time.Duration, since time.Time, behind bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.by, j.since, recent(j.behind, now)
}

func recent(at, now time.Time) bool { return !at.IsZero() && now.Sub(at) <= memory }

func within(d, bound time.Duration) bool { return d.Abs() <= bound }

// EarlyError is returned by a handler that knows, unlike the consumer, that its message is not due yet. It makes the
// consumer send the message back for the rest of its delay.
type EarlyError struct {
	Offset time.Duration // the clock that the due time was computed with, minus this process's clock
}

func (e *EarlyError) Error() string {
	return "the message arrived before its due time, by the clock that this time was computed with"
}
