package sweep

import "github.com/rabbitdelay/rabbitdelay/internal/rows"

// ground is the reason why messages may be sent again.
type ground string

// The possible grounds.
const (
	// noGround means that there is no sign of lost messages.
	noGround ground = ""
	// passedBy means that consumers have already received messages that arrived in the queue at least one Grace after
	// the overdue ones were due. Queues keep their order, so the overdue messages are probably lost.
	passedBy ground = "consumers have moved past them"
	// queueEmpty means that the queue has no ready message and that its consumers make no progress. Any message that
	// still exists must be unacknowledged.
	queueEmpty ground = "their queue is empty"
	// allQuiet means that the consumers make no progress, and that the depth of the queue cannot be
	// determined.
	allQuiet ground = "none of their destination's tasks are being settled"
)

// evidence contains the known facts about a destination that has overdue tasks. Times and durations are in
// milliseconds.
type evidence struct {
	now, grace int64
	first      int64 // the earliest resend_at
	rows.Passage

	ready int // number of ready messages in the queue, or one of the constants below
}

// Values of ready that are not a number of messages.
const (
	unknownDepth = -1 // the number cannot be determined
	undecided    = -2 // the broker has not been asked yet
)

// ground decides whether the evidence suggests that messages are lost. It returns true for ask if the caller must first
// determine the depth of the queue.
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

// window limits how many tasks of a destination are sent again while there is no proof that their messages are lost. It
// begins with a few tasks, grows when consumers settle them, and shrinks when they do not.
type window struct {
	size  int      // number of tasks that may be sent again at a time; 0 before the first time
	sent  int      // number of tasks in the latest group that was sent again
	out   []string // ids of the first of those tasks, at most watched of them
	since int64    // when they were sent
	used  int64    // when the destination last had overdue tasks
	told  int64    // when a message about the destination was last logged
}

// watched is the maximum number of tasks that were sent again and that are watched, to see whether consumers settle
// them.
const watched = 500

// remember records which tasks were sent again, so that failing can check later whether they were settled.
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

// allowed returns how many tasks may be sent again now. The parameter unsettled is the number of watched tasks that
// have not been settled yet. While these may still be delivered, allowed returns 0. If consumers do not settle them,
// the size of the window is halved: down to firstTries if the queue is empty, because a few more messages do no harm
// there, and down to one task if the depth of the queue is unknown.
func (w *window) allowed(g ground, now, grace int64, unsettled int) int {
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

// toldFor is the time, in milliseconds, before the same message is logged again.
const toldFor = 60 * 60 * 1000

// worthLogging reports whether to log a message about the window now, and remembers that it was logged.
func (w *window) worthLogging(now int64) bool {
	if w.told != 0 && now-w.told < toldFor {
		return false
	}
	w.told = now
	return true
}
