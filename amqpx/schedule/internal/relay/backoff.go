package relay

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Target is the exact destination of a task's message, including the routing key.
type Target struct{ Queue, Exchange, Key string }

func targetOf(t *rows.Task) Target { return Target{t.Queue, t.Exchange, t.RoutingKey} }

func (t Target) String() string {
	if t.Exchange == "" {
		return "queue " + t.Queue
	}
	return fmt.Sprintf("exchange %s with routing key %q", t.Exchange, t.Key)
}

// These are the pauses before a failed send is retried. A pause doubles from firstPause up to longestDestinationPause
// if the destination is the cause, or up to longestBrokerPause if the whole broker may be the cause.
const (
	firstPause              = time.Second
	longestDestinationPause = time.Minute
	longestBrokerPause      = 15 * time.Second
)

// backoff is the back-off state of a target that rejects messages or does not confirm them.
type backoff struct {
	failures int       // number of consecutive failed tries
	until    time.Time // no task is sent to the target before that time
	window   int       // the largest number of tasks in the next try
}

// firstWindow is how many tasks are sent to a target after it has rejected some. goneWindow is the number for a target
// that does not exist. The window doubles with every try that succeeds.
const (
	firstWindow = 10
	goneWindow  = 100
)

// tally counts the outcomes of a target's messages in one batch.
type tally struct {
	sent    int
	refused int  // messages that were rejected because of the target
	silent  int  // messages without an answer while other targets got answers
	gone    bool // the target does not exist, or the user is not allowed to access it
}

// after returns the back-off state after another try. Back-off ends when the window is as large as a batch again. If
// the target does not exist, the pause does not grow, because rejecting many tasks takes no longer than rejecting one,
// and the pause of each of these tasks grows anyway.
func (t backoff) after(x tally, now time.Time, batch int, jitter float64) backoff {
	if x.refused+x.silent == 0 {
		return backoff{window: min(2*t.window, batch)}
	}
	if x.gone {
		return backoff{until: now.Add(firstPause), window: min(goneWindow, batch)}
	}
	if x.sent > 0 {
		t.failures = 0
	}
	pause := polling.Backoff(firstPause, t.failures, longestDestinationPause)
	pause -= time.Duration(jitter * float64(pause/4))
	return backoff{failures: t.failures + 1, until: now.Add(pause), window: min(firstWindow, batch)}
}

// recovered reports whether a target may share a batch with other targets again.
func (t backoff) recovered(batch int) bool {
	return t.until.IsZero() && t.window >= batch
}

// backoffs keeps the back-off state of targets. Each target in back-off gets separate batches, so that it does not
// delay other targets.
type backoffs struct {
	batch int

	mu       sync.Mutex
	targets  map[Target]*targetState
	answered time.Time // when a message was last confirmed
}

// targetState is the state of one target that is in back-off or has unfinished batches.
type targetState struct {
	backoff
	busy int // number of unfinished batches that keep the target out of claims
}

func newBackoffs(batch int) *backoffs {
	return &backoffs{batch: batch, targets: map[Target]*targetState{}}
}

// mostKeys bounds how many routing keys of an exchange one claim distinguishes. Tasks of further routing keys in
// back-off are claimed with the others, and the method part separates them.
const mostKeys = 50

// requests returns the claim requests for a lane. A target in back-off gets none until its pause is over, and after
// that as many tasks as its window allows.
func (h *backoffs) requests(l rows.Lane, until int64, now time.Time) []rows.ClaimRequest {
	if l.Exchange == "" {
		room := h.allowance(Target{Queue: l.Queue}, now)
		if room == 0 {
			return nil
		}
		return []rows.ClaimRequest{{Lane: l, Until: until, Most: room}}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	others := rows.ClaimRequest{Lane: l, Until: until, Most: h.batch}
	var list []rows.ClaimRequest
	for t, i := range h.targets {
		if t.Exchange != l.Exchange || len(others.OtherKeys) == mostKeys {
			continue
		}
		others.OtherKeys = append(others.OtherKeys, t.Key)
		if room := i.allows(now); room > 0 {
			list = append(list, rows.ClaimRequest{Lane: l, Until: until, Most: room, Keys: []string{t.Key}})
		}
	}
	return append(list, others)
}

// allowance returns how many tasks may be sent to a target now.
func (h *backoffs) allowance(t Target, now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.targets[t]; i != nil {
		return i.allows(now)
	}
	return h.batch
}

func (i *targetState) allows(now time.Time) int {
	if i.busy > 0 || i.until.After(now) {
		return 0
	}
	return i.window
}

// parted is a claim, divided by how its tasks are published.
type parted struct {
	shared []*rows.Task
	alone  map[Target][]*rows.Task    // batches for targets in back-off, which are left out of claims in the meantime
	later  map[time.Time][]*rows.Task // tasks to release unsent, by the time at which they may be claimed again
}

// part divides a claim. The targets in alone are left out of further claims until release is called.
func (h *backoffs) part(list []*rows.Task, now time.Time) parted {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := parted{alone: map[Target][]*rows.Task{}, later: map[time.Time][]*rows.Task{}}
	for _, c := range list {
		t := targetOf(c)
		i := h.targets[t]
		switch {
		case i == nil || c.Bad != nil:
			p.shared = append(p.shared, c)
		case i.until.After(now):
			p.later[i.until] = append(p.later[i.until], c)
		case i.busy > 0 || len(p.alone[t]) >= i.window:
			p.later[now.Add(firstPause)] = append(p.later[now.Add(firstPause)], c)
		default:
			p.alone[t] = append(p.alone[t], c)
		}
	}
	for t := range p.alone {
		h.targets[t].busy++
	}
	return p
}

// hold keeps targets out of claims until release has been called the same number of times as hold.
func (h *backoffs) hold(targets []Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range targets {
		if h.targets[t] == nil {
			h.targets[t] = &targetState{backoff: backoff{window: h.batch}}
		}
		h.targets[t].busy++
	}
}

func (h *backoffs) release(targets []Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range targets {
		h.targets[t].busy--
		h.tidy(t)
	}
}

// tidy removes the state of a target whose back-off has ended. The caller holds the lock.
func (h *backoffs) tidy(t Target) {
	if i := h.targets[t]; i.busy == 0 && i.recovered(h.batch) {
		delete(h.targets, t)
	}
}

// confirmed records when the broker last confirmed a message.
func (h *backoffs) confirmed(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered = now
}

// learn updates the back-off of targets with the outcomes of a batch. The parameter began is when the batch was
// started.
func (h *backoffs) learn(found map[Target]*tally, began, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t, counted := range found {
		x := *counted
		if x.sent > 0 || !h.answered.After(began) {
			x.silent = 0 // the target is only slow, or the broker has answered no message at all
		}
		i := h.targets[t]
		if i == nil {
			if x.refused+x.silent == 0 {
				continue
			}
			i = &targetState{}
			h.targets[t] = i
		} else if x.sent+x.refused+x.silent == 0 {
			continue // the batch says nothing about the target
		}
		i.backoff = i.after(x, now, h.batch, rand.Float64())
		h.tidy(t)
	}
}

// retry returns the time at which a target is tried again, or the zero time if the target is not in back-off.
func (h *backoffs) retry(t Target) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.targets[t]; i != nil {
		return i.until
	}
	return time.Time{}
}

// forgetAfter is how long the state of a target without tasks is kept after its pause.
const forgetAfter = 10 * time.Minute

// next returns the time at which the first of the targets' pauses ends, or the zero time if no target is pausing. It
// also removes the state of targets that have not been used for forgetAfter.
func (h *backoffs) next(now time.Time) (next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t, i := range h.targets {
		switch {
		case i.busy > 0:
		case i.until.After(now):
			if next.IsZero() || i.until.Before(next) {
				next = i.until
			}
		case now.Sub(i.until) > forgetAfter && !i.until.IsZero():
			delete(h.targets, t)
		}
	}
	return next
}
