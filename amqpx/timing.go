package amqpx

import (
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
)

// timing says when a message is due. Times in milliseconds are counted from the Unix epoch.
type timing struct {
	start     time.Time
	up        time.Duration // the client's uptime at start
	due       int64         // in ms, by the clock of the message's DeliverAt
	aim       int64         // when the broker should deliver the message, in ms, by this process's clock; due minus lead, or later if the route takes longer (see Client.route)
	from      origin
	offset    time.Duration // the clock of due minus this process's clock
	lead      time.Duration // how long before due the broker delivers the message: see Client.ahead
	tolerance time.Duration
}

// origin is the point from which a message's due time is counted.
type origin int

const (
	fromEpoch origin = iota // the message has an absolute due time
	fromCall                // the call to Send
	fromWrite               // the first write of the message to a connection
)

// timingOf returns the timing of a message that is sent now, without a lead, and its delay.
func timingOf(m *Message, now time.Time, up time.Duration) (t timing, delay time.Duration) {
	due := dueAt(m, now)
	t = timing{start: now, up: up, due: due, aim: due - floorMilli(m.ClockOffset), offset: m.ClockOffset, tolerance: m.Tolerance}
	delay = remaining(t.aim, now)
	if m.DeliverAt.IsZero() {
		t.from = fromCall
		// The difference may be 1 ms too long, because now need not be a whole number of milliseconds.
		delay = min(delay, ceilMillis(m.Delay))
	}
	return t, delay
}

// deliverAhead sets the message's lead, and moves its aim earlier by the lead. If the message has a relative delay and
// no tolerance, the aim becomes the time at which its route, which has the given delay, delivers it.
func (t *timing) deliverAhead(lead, route time.Duration) {
	t.lead = lead
	t.aim -= lead.Milliseconds()
	if t.from != fromEpoch && t.tolerance == 0 {
		t.aim = ceilMilli(t.start) + route.Milliseconds()
	}
}

// restart makes the delay count from the given time.
func (t *timing) restart(now time.Time) {
	t.due += ceilMillis(now.Sub(t.start)).Milliseconds()
	t.aim += ceilMilli(now) - ceilMilli(t.start)
	t.start = now
}

// addTo adds the headers that describe when the message is due.
func (t *timing) addTo(headers amqp.Table) {
	headers[HeaderDue] = t.due
	if t.offset >= tellOffset {
		headers[header.ClockOffset] = floorMilli(t.offset)
	}
	if t.lead > 0 {
		headers[header.Lead] = t.lead.Milliseconds()
	}
}

// maxDelay is the longest time.Duration in whole milliseconds. It is 292 years, longer than any strategy's maximum.
const maxDelay = time.Duration(math.MaxInt64 - math.MaxInt64%int64(time.Millisecond))

// dueAt returns the due time in epoch milliseconds, rounded up, at most maxDelay from now. Because the broker truncates
// its clock to milliseconds, a message may still reach its consumer up to a millisecond before its due time. The
// consumer then holds it.
func dueAt(m *Message, now time.Time) int64 {
	latest := now.UnixMilli() + maxDelay.Milliseconds()
	if m.DeliverAt.IsZero() && m.Delay == 0 {
		return now.UnixMilli() // immediately, without rounding up
	}
	if m.DeliverAt.IsZero() {
		return min(ceilMilli(now.Add(min(m.Delay, maxDelay))), latest)
	}
	// Before and After do not work here because a time in the very distant future, such as
	// time.Unix(math.MaxInt64, 0), overflows inside time.Time. Only Unix returns the intended number.
	switch at := m.DeliverAt.Unix(); {
	case at < 0:
		return 0
	case at >= latest/1000:
		return latest
	}
	return ceilMilli(m.DeliverAt)
}

// ceilMilli returns a time in epoch milliseconds, rounded up.
func ceilMilli(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) > 0 {
		ms++
	}
	return ms
}

// ceilMillis rounds a duration up to whole milliseconds, at most maxDelay.
func ceilMillis(d time.Duration) time.Duration {
	if d > maxDelay {
		return maxDelay
	}
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// floorMilli returns a duration in milliseconds, rounded down.
func floorMilli(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond < 0 {
		ms--
	}
	return ms
}

// remaining returns the time between now and due, which is in epoch milliseconds. The result is 0 if due has passed,
// and at most maxDelay.
func remaining(due int64, now time.Time) time.Duration {
	ms := due - now.UnixMilli()
	switch {
	case ms <= 0:
		return 0
	case ms > maxDelay.Milliseconds():
		return maxDelay
	}
	return time.Duration(ms) * time.Millisecond
}

// tellOffset is the smallest difference between clocks that a message reports. A schedule.Store does not correct
// smaller ones.
const tellOffset = 20 * time.Millisecond

// stamp returns the timestamp property for a message that is sent now. If the due time's clock is behind this process's
// clock by at least tellOffset, stamp uses the due time's clock, because this process's clock may be the wrong one and
// would make the message late. If it is ahead, a header carries the difference instead.
func stamp(now time.Time, offset time.Duration) time.Time {
	if offset <= -tellOffset {
		return now.Add(offset)
	}
	return now
}
