package relay

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Target is exactly where the message of a task goes.
type Target struct{ Queue, Exchange, Key string }

func targetOf(t *rows.Task) Target { return Target{t.Queue, t.Exchange, t.RoutingKey} }

func (t Target) String() string {
	if t.Exchange == "" {
		return "queue " + t.Queue
	}
	return fmt.Sprintf("exchange %s with routing key %q", t.Exchange, t.Key)
}

// Pauses before what could not be sent is tried again: the first, and the longest when the
// fault is its destination's, or may be the whole broker's.
const (
	firstPause              = time.Second
	longestDestinationPause = time.Minute
	longestBrokerPause      = 15 * time.Second
)

// trouble is that of a target that does not take its messages. Nobody waits for a flight of
// such a target. Any other flight that takes more than a second (Patience) gives its worker
// back: what was confirmed is marked, and targets without an answer are left out of claims
// until they have one.
type trouble struct {
	failures int       // tries in a row that failed
	until    time.Time // it is not tried before
	window   int       // tasks that the next try may have
}

// firstWindow is how many tasks a target gets that has refused some, goneWindow one that
// does not exist. They double with every try without a failure.
const (
	firstWindow = 10
	goneWindow  = 100
)

// tally is what became of a target's messages in one flight.
type tally struct {
	sent    int
	refused int  // by the target
	silent  int  // without an answer, while others got one
	gone    bool // the target does not exist, or may not be used
}

// after is the trouble after another try. It is over when the window is as large
// as a batch again. A target that is gone says so at once for any number of
// tasks, and each task has pauses of its own.
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

// over reports whether a target may go with the others again.
func (t trouble) over(batch int) bool {
	return t.until.IsZero() && t.window >= batch
}

// troubles knows the targets in trouble. Those get flights of their own, so that
// they hold up nobody else.
type troubles struct {
	batch int

	mu       sync.Mutex
	ill      map[Target]*illness
	answered time.Time // when a message was last confirmed
}

type illness struct {
	trouble
	busy int // flights on their way that hold the target
}

func newTroubles(batch int) *troubles { return &troubles{batch: batch, ill: map[Target]*illness{}} }

// mostKeys bounds the routing keys of an exchange that one claim distinguishes. Those
// beyond are told apart after it.
const mostKeys = 50

// wishes are what may be claimed of a lane: of a target in trouble nothing until its pause
// is over, and then as much as its window has.
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

// room is how many tasks a target may have now.
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

// parted is a claim divided by the troubles of its targets.
type parted struct {
	shared []*rows.Task
	alone  map[Target][]*rows.Task    // each target in trouble by itself; they are held
	later  map[time.Time][]*rows.Task // to be given back until then
}

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

// hold keeps targets out of claims until as many calls of release.
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

// tidy forgets a target without trouble. The caller holds the lock.
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

// learn takes in what a flight that began at an instant found.
func (h *troubles) learn(found map[Target]*tally, began, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t, counted := range found {
		x := *counted
		if x.sent > 0 || !h.answered.After(began) {
			x.silent = 0 // slow, or it is the broker that does not answer
		}
		i := h.ill[t]
		if i == nil {
			if x.refused+x.silent == 0 {
				continue
			}
			i = &illness{}
			h.ill[t] = i
		} else if x.sent+x.refused+x.silent == 0 {
			continue // nothing is known that was not known before
		}
		i.trouble = i.after(x, now, h.batch, rand.Float64())
		h.tidy(t)
	}
}

// retry is when a target is tried again; zero for one without trouble.
func (h *troubles) retry(t Target) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.ill[t]; i != nil {
		return i.until
	}
	return time.Time{}
}

// forgetAfter is how long after its pause a target is remembered that nobody has
// sent to.
const forgetAfter = 10 * time.Minute

// next is when the next pause of a target ends; zero for none.
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
