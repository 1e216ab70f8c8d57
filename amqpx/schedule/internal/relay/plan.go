package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// sendAhead is how long before its due time a task becomes urgent, if batches are published quickly. It leaves time for
// the claim and for the message's way through the broker.
const sendAhead = 500 * time.Millisecond

// Soon is the time before its due time within which a task stays in the table until it or another task is urgent. It is
// the time within which PostgreSQL notifies the relays of a new task.
const Soon = 5 * time.Second

// plan decides which tasks a poll claims.
//
// Most polls follow a wake-up, because a task was written that is due soon. Claiming, publishing and marking each such
// task alone would cost the database, the broker and this process much more than doing so in batches. Also, a message
// with a short delay takes fewer delay queues than one with a longer delay. There are therefore two kinds of claims:
//
//   - An urgent claim, as soon as a task is urgent, includes all tasks that are due within twice the notice. While
//     tasks are written continuously, there are about two such claims a second.
//   - A regular claim, at every PollInterval, includes the tasks that are due later than Soon, up to the horizon. If
//     very many tasks are due within Soon, they could not all be sent when they are urgent, so it includes them too.
//
// A claim can be both. The tasks that are due later then get the places in the batch that the others leave.
//
// Times are in milliseconds since the Unix epoch, by the database's clock.
type plan struct {
	now    int64
	notice int64 // how long before its due time a task is urgent, in ms
	near   int64 // an urgent claim includes the tasks that are due by this time
	far    int64 // a regular claim includes the tasks that are due after this time
	until  int64 // no task is claimed that is due after this time

	regular bool  // whether it is time for a regular claim
	urgent  bool  // whether a task is urgent
	by      int64 // when the first task becomes urgent; 0 if there are no tasks

	parts []part
}

// part is a request that a plan makes in certain claims: always for a lane with a rate limit, whose requests are for
// the next second, and otherwise only in urgent or only in regular claims.
type part struct {
	rows.ClaimRequest

	urgent, regular bool
}

// plan returns the plan for a poll that begins now. If all is true, or in virtual time, the poll claims everything
// within the horizon. In virtual time, claims take no time.
func (r *Relay) plan(now time.Time, all bool) *plan {
	at := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	notice, wait := r.notice(), r.regular.Get()-now.UnixMilli()
	p := &plan{
		now: now.UnixMilli(), notice: notice.Milliseconds(),
		near: at(2 * notice), far: at(max(Soon, 2*notice)), until: at(r.Horizon),
		regular: wait <= 0 || wait > r.PollInterval.Milliseconds(), // it is longer if the database's clock was set back
	}
	if all || r.Poller.Virtual() {
		p.claimAll()
	}
	return p
}

// claimAll makes the plan claim all tasks within the horizon.
func (p *plan) claimAll() { p.near, p.far, p.urgent = p.until, p.until, true }

// burst is the number of batches that a relay can send while tasks are urgent. With 500 tasks in a batch, that is 5,000
// tasks in half a second.
const burst = 10

// admitBurst makes a regular claim include all tasks if too many are due soon. It counts tasks that were sent as well,
// because that needs only an index.
func (r *Relay) admitBurst(ctx context.Context, p *plan, lanes []rows.Waiting) error {
	if p.urgent || !p.regular || !slices.ContainsFunc(lanes, func(w rows.Waiting) bool { return w.First <= p.far }) {
		return nil
	}
	c, err := r.DB.Conn(ctx)
	if err != nil {
		return err
	}
	most := int64(burst * r.Batch)
	n, err := c.CountPending(ctx, p.near, p.far, most)
	if err != nil {
		return fmt.Errorf("counting tasks: %w", err)
	}
	if n == most {
		p.claimAll()
	}
	return nil
}

// leadMargin is how long before the lead of its message a task is urgent.
const leadMargin = 100 * time.Millisecond

// notice returns how long before its due time a task is urgent. It is longer if messages have a long lead, and if the
// last batch took long because the database or the broker is busy.
func (r *Relay) notice() time.Duration {
	return min(max(sendAhead, r.Lead+leadMargin)+2*time.Duration(r.took.Load()), r.Horizon/2)
}

// add adds the requests of a lane. A request for less than a batch, which is for a target in back-off, is not split, so
// that the target gets no more tasks than it may.
func (p *plan) add(w rows.Waiting, requests []rows.ClaimRequest, limited bool, batch int) {
	if len(requests) > 0 && !limited {
		by := w.First - p.notice
		p.by = earlier(p.by, by)
		p.urgent = p.urgent || by <= p.now
	}
	for _, x := range requests {
		near, far := part{x, true, false}, part{x, false, true}
		near.Until, far.After = min(x.Until, p.near), max(x.After, p.far)
		switch {
		case limited:
			p.parts = append(p.parts, part{x, true, true})
		case x.Most < batch:
			p.parts = append(p.parts, part{x, w.First <= p.far, w.First > p.far})
		default:
			if w.First <= near.Until {
				p.parts = append(p.parts, near)
			}
			if far.After < far.Until {
				p.parts = append(p.parts, far)
			}
		}
	}
}

// requests returns the requests that are to be claimed now.
func (p *plan) requests() (list []rows.ClaimRequest) {
	for _, x := range p.parts {
		if x.urgent && x.regular || x.urgent && p.urgent || x.regular && p.regular {
			list = append(list, x.ClaimRequest)
		}
	}
	return list
}

// nextPoll returns when to poll for the tasks that the plan does not claim, or 0 for the usual interval. The parameter
// beyond is the due time of the first task beyond the horizon, or 0 if none becomes due soon.
func (r *Relay) nextPoll(p *plan, beyond int64) (next int64) {
	switch claims := len(p.requests()) > 0; {
	case claims && r.Poller.Virtual():
		return 0 // some tasks may not be claimable yet
	case claims && p.urgent:
		return p.now + p.notice // this claim includes all tasks that become urgent before that
	case beyond > 0:
		next = beyond - r.Horizon.Milliseconds()
	}
	if !p.regular && slices.ContainsFunc(p.parts, func(x part) bool { return x.regular }) {
		next = earlier(next, r.regular.Get())
	}
	return earlier(next, p.by)
}
