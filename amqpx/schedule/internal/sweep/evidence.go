package sweep

import "github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"

// ground is what says that a message may be sent again.
type ground string

// The grounds there are.
const (
	// noGround: nothing says that the messages are lost.
	noGround ground = ""
	// passedBy: consumers have taken what came to the queue a grace after them.
	passedBy ground = "consumers have passed them"
	// queueEmpty: no message is ready, and the consumers do not come forward. Only
	// the unacknowledged messages are unknown.
	queueEmpty ground = "their queue is empty"
	// allQuiet: the consumers do not come forward, and what the queue holds cannot
	// be known.
	allQuiet ground = "nothing of their destination is being settled"
)

// evidence is what is known of a destination that has overdue tasks. Instants and
// durations are in milliseconds.
type evidence struct {
	now, grace int64
	first      int64 // the earliest resend_at
	rows.Passage

	ready int // messages in the queue; unknownDepth, or undecided while nobody has asked
}

// What ready is when it is no number.
const (
	unknownDepth = -1
	undecided    = -2
)

// ground judges the evidence. ask is true if the depth of the queue has to be
// known first.
func (e evidence) ground() (g ground, ask bool) {
	switch {
	case e.first <= e.Reached:
		return passedBy, false
	case e.now-e.Lively < e.grace:
		return noGround, false // they are at work, and may come to it
	case e.ready == undecided:
		return noGround, true
	case e.ready == unknownDepth:
		return allQuiet, false
	case e.ready == 0:
		return queueEmpty, false
	}
	return noGround, false // they wait in the queue
}

// until is the latest resend_at of what may be sent again.
func (e evidence) until(g ground) int64 {
	if g == passedBy {
		return min(e.Reached, e.now)
	}
	return e.now
}

// Bounds of a window, in tasks.
const (
	firstTries = 10
	mostTries  = 5000
)

// window bounds what is sent again of a destination while nothing shows that its
// messages are lost: a few tasks at first, more when consumers settle those, and
// fewer when not.
type window struct {
	size  int
	sent  int      // how many were sent again last
	out   []string // ids of those, or of the first of them
	since int64    // when
	used  int64    // when it was looked at last
	told  int64    // when the log last said something about it
}

// watched is how many of the tasks that were sent again are looked after.
const watched = 500

// remember records what was sent again.
func (w *window) remember(ids []string, now int64) {
	if len(ids) > 0 {
		w.sent, w.out, w.since = len(ids), ids[:min(len(ids), watched)], now
	}
}

// failing reports whether fewer than half of what was sent again were settled, when
// they had a grace to come.
func (w *window) failing(now, grace int64, unsettled int) bool {
	return 2*unsettled > len(w.out) && now-w.since >= grace
}

// room is how many tasks may be sent again now, if so many of out are still to be
// settled. It is none while they may still come. An empty queue takes a few
// without harm; where that is not known the window closes to one.
func (w *window) room(g ground, now, grace int64, unsettled int) int {
	switch {
	case w.size == 0:
		w.size = firstTries
	case w.failing(now, grace, unsettled):
		least := 1
		if g == queueEmpty {
			least = firstTries
		}
		w.size = max(w.size/2, least)
	case 2*unsettled > len(w.out):
		return 0
	case len(w.out) > 0 && w.sent >= w.size:
		w.size = min(2*w.size, mostTries)
	}
	w.sent, w.out = 0, nil
	return w.size
}

// toldFor is for how long the log does not say the same again, in milliseconds.
const toldFor = 60 * 60 * 1000

// worthLogging reports whether the log is to say something, and remembers that it did.
func (w *window) worthLogging(now int64) bool {
	if w.told != 0 && now-w.told < toldFor {
		return false
	}
	w.told = now
	return true
}
