package sweep

import "github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"

// ground is the reason why messages may be sent again.
type ground string

// The possible grounds.
const (
	// noGround means that nothing suggests that the messages are lost.
	noGround ground = ""
	// passedBy means that consumers have taken messages that arrived in the queue one Grace or more
	// later.
	passedBy ground = "consumers have passed them"
	// queueEmpty means that no message is ready, and that the consumers make no progress. Only the
	// unacknowledged messages may still exist.
	queueEmpty ground = "their queue is empty"
	// allQuiet means that the consumers make no progress, and that the depth of the queue cannot be
	// determined.
	allQuiet ground = "nothing of their destination is being settled"
)

// evidence is what is known about a destination that has overdue tasks. Times and durations are in
// milliseconds.
type evidence struct {
	now, grace int64
	first      int64 // the earliest resend_at
	rows.Passage

	ready int // number of ready messages in the queue, or unknownDepth or undecided
}

// Values of ready that are not a number of messages.
const (
	unknownDepth = -1 // the broker does not tell
	undecided    = -2 // the broker has not been asked yet
)

// ground evaluates the evidence. ask is true if the depth of the queue has to be determined first.
func (e evidence) ground() (g ground, ask bool) {
	switch {
	case e.first <= e.Reached:
		return passedBy, false
	case e.now-e.Lively < e.grace:
		return noGround, false // consumers make progress and may reach the messages
	case e.ready == undecided:
		return noGround, true
	case e.ready == unknownDepth:
		return allQuiet, false
	case e.ready == 0:
		return queueEmpty, false
	}
	return noGround, false // the messages are waiting in the queue
}

// until returns the latest resend_at of the tasks that may be sent again.
func (e evidence) until(g ground) int64 {
	if g == passedBy {
		return min(e.Reached, e.now)
	}
	return e.now
}

// Limits of a window, in tasks.
const (
	firstTries = 10
	mostTries  = 5000
)

// window bounds how many tasks of a destination are sent again while nothing proves that their
// messages are lost. It begins with a few tasks, grows when consumers settle them, and shrinks when
// they do not.
type window struct {
	size  int
	sent  int      // number of tasks that were sent again last
	out   []string // ids of those tasks, at most the first watched ones
	since int64    // when they were sent
	used  int64    // when the window was used last
	told  int64    // when something was last logged about it
}

// watched bounds how many of the tasks that were sent again are watched.
const watched = 500

// remember records the tasks that were sent again.
func (w *window) remember(ids []string, now int64) {
	if len(ids) > 0 {
		w.sent, w.out, w.since = len(ids), ids[:min(len(ids), watched)], now
	}
}

// failing reports whether fewer than half of the watched tasks were settled within a Grace after they
// were sent again.
func (w *window) failing(now, grace int64, unsettled int) bool {
	return 2*unsettled > len(w.out) && now-w.since >= grace
}

// room returns how many tasks may be sent again now, if unsettled of the watched tasks are not
// settled yet. It returns 0 while those may still be delivered. The window of an empty queue shrinks
// to firstTries, which does no harm. If it is not known whether the queue is empty, it shrinks to one
// task.
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

// toldFor is how long the same message is not logged again, in milliseconds.
const toldFor = 60 * 60 * 1000

// worthLogging reports whether to log a message about the window now, and remembers that it was logged.
func (w *window) worthLogging(now int64) bool {
	if w.told != 0 && now-w.told < toldFor {
		return false
	}
	w.told = now
	return true
}
