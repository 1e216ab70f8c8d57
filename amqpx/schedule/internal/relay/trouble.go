package relay

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
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

// Pauses before a failed send is retried: the first pause, and the longest pause when the cause is
// the destination, or may be the whole broker.
const (
	firstPause              = time.Second
	longestDestinationPause = time.Minute
	longestBrokerPause      = 15 * time.Second
)

// trouble is the back-off state of a target that does not accept its messages. A relay that sends
// for the first time does not wait for a flight of such a target. Any other flight that takes longer
// than Patience (a second) frees its worker: confirmed tasks are marked, and targets that have not
// answered are left out of claims until they have.
type trouble struct {
	failures int       // number of consecutive failed tries
	until    time.Time // the target is not tried before
	window   int       // how many tasks the next try may have
}

// firstWindow is how many tasks are sent to a target after it has rejected some. goneWindow is the
// same for a target that does not exist. The window doubles with every try without a failure.
const (
	firstWindow = 10
	goneWindow  = 100
)

// tally counts the outcomes of a target's messages in one flight.
type tally struct {
	sent    int
	refused int  // rejected because of the target
	silent  int  // not answered, while other targets got answers
	gone    bool // the target does not exist, or the user may not access it
}

// after returns the back-off state after another try. The back-off ends when the window is as large
// as a batch again. A target that is gone fails immediately for any number of tasks, so its
// pause does not grow: each of its tasks has its own pauses.
func (t trouble) after(x tally, now time.Time, batch int, jitter float64) trouble {
	if x.refused+x.silent == 0 {
		return trouble{window: min(2*t.window, batch)}
	}
	if x.gone {
		return trouble{until: now.Add(firstPause), window: min(goneWindow, batch)}
	}
	if x.sent > 0 {
		t.failures = 0
	}
	pause := pace.Backoff(firstPause, t.failures, longestDestinationPause)
	pause -= time.Duration(jitter * float64(pause/4))
	return trouble{failures: t.failures + 1, until: now.Add(pause), window: min(firstWindow, batch)}
}

// over reports whether a target may share a flight with other targets again.
func (t trouble) over(batch int) bool {
	return t.until.IsZero() && t.window >= batch
}

// troubles keeps the back-off state of targets. Targets in back-off get separate flights, so that
// they do not delay other targets.
type troubles struct {
	batch int

	mu       sync.Mutex
	ill      map[Target]*illness
	answered time.Time // when a message was last confirmed
}

// illness is the state of one target.
type illness struct {
	trouble
	busy int // number of unfinished flights that keep the target out of claims
}

func newTroubles(batch int) *troubles { return &troubles{batch: batch, ill: map[Target]*illness{}} }

// mostKeys bounds the number of routing keys of an exchange that one claim distinguishes. Tasks of
// further keys in back-off are separated after the claim, by part.
const mostKeys = 50

// wishes returns what may be claimed of a lane. Of a target in back-off that is nothing until its
// pause is over, and after that as many tasks as its window allows.
func (h *troubles) wishes(l rows.Lane, until int64, now time.Time) []rows.Wish {
	if l.Exchange == "" {
		room := h.room(Target{Queue: l.Queue}, now)
		if room == 0 {
			return nil
		}
		return []rows.Wish{{Lane: l, Until: until, Most: room}}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	others := rows.Wish{Lane: l, Until: until, Most: h.batch}
	var list []rows.Wish
	for t, i := range h.ill {
		if t.Exchange != l.Exchange || len(others.OtherKeys) == mostKeys {
			continue
		}
		others.OtherKeys = append(others.OtherKeys, t.Key)
		if room := i.allows(now); room > 0 {
			list = append(list, rows.Wish{Lane: l, Until: until, Most: room, Keys: []string{t.Key}})
		}
	}
	return append(list, others)
}

// room returns how many tasks a target may be sent now.
func (h *troubles) room(t Target, now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.ill[t]; i != nil {
		return i.allows(now)
	}
	return h.batch
}

func (i *illness) allows(now time.Time) int {
	if i.busy > 0 || i.until.After(now) {
		return 0
	}
	return i.window
}

// parted is a claim divided by the back-off of its targets.
type parted struct {
	shared []*rows.Task
	alone  map[Target][]*rows.Task    // the targets in back-off, which are kept out of claims
	later  map[time.Time][]*rows.Task // tasks to release, by when they may be claimed again
}

// part divides a claim, and keeps the targets of alone out of claims until release.
func (h *troubles) part(list []*rows.Task, now time.Time) parted {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := parted{alone: map[Target][]*rows.Task{}, later: map[time.Time][]*rows.Task{}}
	for _, c := range list {
		t := targetOf(c)
		i := h.ill[t]
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
		h.ill[t].busy++
	}
	return p
}

// hold keeps targets out of claims until release has been called as often as hold.
func (h *troubles) hold(targets []Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range targets {
		if h.ill[t] == nil {
			h.ill[t] = &illness{trouble: trouble{window: h.batch}}
		}
		h.ill[t].busy++
	}
}

func (h *troubles) release(targets []Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range targets {
		h.ill[t].busy--
		h.tidy(t)
	}
}

// tidy forgets a target whose back-off is over. The caller holds the lock.
func (h *troubles) tidy(t Target) {
	if i := h.ill[t]; i.busy == 0 && i.over(h.batch) {
		delete(h.ill, t)
	}
}

// confirmed records that the broker answers.
func (h *troubles) confirmed(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered = now
}

// learn updates the targets' back-off with the outcomes of a flight that began at began.
func (h *troubles) learn(found map[Target]*tally, began, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t, counted := range found {
		x := *counted
		if x.sent > 0 || !h.answered.After(began) {
			x.silent = 0 // the target is only slow, or the whole broker does not answer
		}
		i := h.ill[t]
		if i == nil {
			if x.refused+x.silent == 0 {
				continue
			}
			i = &illness{}
			h.ill[t] = i
		} else if x.sent+x.refused+x.silent == 0 {
			continue // no new information
		}
		i.trouble = i.after(x, now, h.batch, rand.Float64())
		h.tidy(t)
	}
}

// retry returns when a target is tried again, zero for a target that is not in back-off.
func (h *troubles) retry(t Target) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.ill[t]; i != nil {
		return i.until
	}
	return time.Time{}
}

// forgetAfter is how long after the end of its pause an unused target is remembered.
const forgetAfter = 10 * time.Minute

// next returns when the next pause of a target ends, zero if no target pauses. It also forgets
// targets that have not been used for forgetAfter.
func (h *troubles) next(now time.Time) (next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t, i := range h.ill {
		switch {
		case i.busy > 0:
		case i.until.After(now):
			if next.IsZero() || i.until.Before(next) {
				next = i.until
			}
		case now.Sub(i.until) > forgetAfter && !i.until.IsZero():
			delete(h.ill, t)
		}
	}
	return next
}
