package consume

import (
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/duecheck"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// dueCheck is the result of checking when a delivery's handler may start.
type dueCheck struct {
	at    time.Time // when the handler may start
	early bool      // the delivery must be sent back to the broker at that time, because it will still be too early
	doubt bool      // the start time may turn out to be earlier: see duecheck.Decision
	// offset is how far the clock that the due time was computed with is ahead of the publisher's clock, and by
	// assumption of this process's.
	offset time.Duration
}

// checkDue decides when the handler of a delivery that has just arrived may start. It adds the wait to a time that it
// reads after the wall clock, so the wait never ends early.
func (k *Consumer) checkDue(d *Delivery) {
	a := arrivalOf(&d.Raw)
	w := k.decide(a)
	d.came = time.Now()
	d.check = dueCheck{at: d.came.Add(w.Wait), early: w.Return, doubt: w.Doubt, offset: a.Offset}
	d.worn = d.isWorn(w)
}

// checkAgain recomputes the start time of a delivery whose start time is uncertain. The broker may have reported its
// clock since the last decision.
func (k *Consumer) checkAgain(d *Delivery) {
	d.check.doubt = false
	w := k.decide(arrivalOf(&d.Raw))
	if at := time.Now().Add(w.Wait); !w.Return && at.Before(d.check.at) {
		d.check.at = at
	}
}

func (k *Consumer) decide(a duecheck.Arrival) duecheck.Decision {
	return k.all.clocks.Wait(a, k.all.cfg.Now(), time.Since(k.all.began))
}

// arrivalOf reads the times in a message's headers. It treats implausible values as absent.
func arrivalOf(raw *amqp.Delivery) duecheck.Arrival {
	a := duecheck.Arrival{Sent: raw.Timestamp, Due: header.Instant(raw.Headers, header.Due)}
	if lead, ok := header.Integer(raw.Headers, header.Lead); ok && lead > 0 && lead <= topology.MaxLead.Milliseconds() {
		a.Lead = time.Duration(lead) * time.Millisecond
	}
	if offset, ok := header.Integer(raw.Headers, header.ClockOffset); ok && offset > 0 && offset < header.MaxEpochMilli {
		a.Offset = time.Duration(offset) * time.Millisecond
	}
	if n, ok := header.Integer(raw.Headers, header.Returned); ok && n > 0 {
		a.Returned = int(min(n, math.MaxInt32))
	}
	a.Absolute, _ = raw.Headers[header.Absolute].(bool)
	a.Expired = lastExpiry(raw.Headers)
	if _, renewed := raw.Headers[header.Delivered]; renewed { // its last delay may be that of the renewal, not the publisher's
		a.Expired = header.Instant(raw.Headers, header.Expired)
	}
	return a
}

// lastExpiry returns the time at which the message left its last delay queue, by the broker's clock in whole seconds,
// or the zero time if its last death was not an expiry. The broker lists the latest death first.
func lastExpiry(headers amqp.Table) time.Time {
	deaths, _ := headers["x-death"].([]any)
	if len(deaths) == 0 {
		return time.Time{}
	}
	death, _ := deaths[0].(amqp.Table)
	if reason, _ := death["reason"].(string); reason != "expired" {
		return time.Time{}
	}
	at, _ := death["time"].(time.Time)
	return at
}
