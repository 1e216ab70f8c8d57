package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// unsentGrace is how long a working relay may take to send a task that is due.
const unsentGrace = 10 * time.Second

const noError = "no error is recorded"

// Words translates a text. Its parameters are the English text and the values for the text's placeholders, %s.
type Words func(english string, args ...any) string

// inEnglish implements Words for English. It only fills in the placeholders.
func inEnglish(english string, args ...any) string {
	if len(args) == 0 {
		return english
	}
	return fmt.Sprintf(english, args...)
}

// Explain returns the sentence for Why, which it derives from the other fields. It does no I/O.
func (t *Trace) Explain() string { return t.ExplainIn(inEnglish) }

// ExplainIn returns the sentence in another language. It does not translate the errors of other components.
func (t *Trace) ExplainIn(words Words) string {
	e := explainer{t, words}
	if t.Task != nil {
		return e.task(*t.Task)
	}
	if i := slices.IndexFunc(t.Records, func(r idempotency.Record) bool { return !r.Guarded }); i >= 0 {
		return e.say("it is done: its effect in %s was committed at %s", t.Records[i].Scope, shown.Instant(t.Records[i].ProcessedAt))
	}
	if len(t.Records) > 0 {
		r := t.Records[0]
		return e.say("its handler in %s ran at %s and skipped the effect, because a guard (OnlyIf or When) was not met", r.Scope, shown.Instant(r.ProcessedAt))
	}
	if len(t.DeadLetters) > 0 {
		return e.dead(t.DeadLetters[0])
	}
	return e.unknown()
}

// explainer explains a trace in a language.
type explainer struct {
	*Trace

	say Words
}

// count returns n with its noun, translated. It uses the text one if n is 1, and otherwise the text many, with the
// number in place of its placeholder.
func (e explainer) count(n int64, one, many string) string {
	if n == 1 {
		return e.say(one)
	}
	return e.say(many, shown.Number(n))
}

func (e explainer) attempts(n int) string { return e.count(int64(n), "1 attempt", "%s attempts") }

// lastError returns the error of a task's last attempt.
func (e explainer) lastError(k schedule.TaskRow) string { return cmp.Or(k.LastError, e.say(noError)) }

// relays describes which relays send tasks.
func (e explainer) relays() string { return e.say(status.WhoSends(e.Relays, e.At)) }

func (e explainer) task(k schedule.TaskRow) string {
	switch k.Status {
	case schedule.StatusDone:
		return e.say("it is done: its effect was committed at %s", shown.Instant(k.FinishedAt))
	case schedule.StatusCancelled:
		text := e.say("it was cancelled at %s, before its effect", shown.Instant(k.FinishedAt))
		if k.LastError != "" { // it may name the task that superseded this one
			text += e.say(", the last error: %s", k.LastError)
		}
		return text
	case schedule.StatusExpired:
		return e.say("it was due at %s, was valid for %s after that, and expired at %s", shown.Instant(k.DueSince()), topology.FormatDuration(k.ExpiresAfter), shown.Instant(k.FinishedAt))
	case schedule.StatusFailed:
		attempts := e.say("no recorded attempt")
		if k.Attempts > 0 {
			attempts = e.attempts(k.Attempts)
		}
		return e.say("it failed at %s after %s: %s; rabbitdelay tasks revive makes it pending again", shown.Instant(k.FinishedAt), attempts, e.lastError(k))
	case schedule.StatusRunning:
		for _, x := range e.Effects {
			if x.LeaseUntil.After(e.At) {
				return e.say("a handler of %s is working on it, with a lease until %s", x.Queue, shown.Instant(x.LeaseUntil))
			}
		}
		return e.say("a handler began to work on it, but its lease has expired; a relay makes it pending again") + e.unlessSent()
	case schedule.StatusPending:
	}
	due := shown.Instant(k.DueSince())
	switch late := e.At.Sub(k.DueSince()); {
	case k.SentAt.IsZero() && e.Held != nil && (e.Held.Paused() || late >= 0 && e.Held.Busy):
		return e.held(k, late)
	case late < 0 && k.SentAt.IsZero():
		return e.say("it is due at %s and waits in the table until a relay sends it", due) + e.unlessSent()
	case late < 0:
		return e.ahead(k, -late)
	case len(e.DeadLetters) > 0:
		return e.dead(e.DeadLetters[0])
	case k.SentAt.IsZero() && k.LastError != "":
		return e.say("it was due at %s and could not be sent to the broker: %s", due, k.LastError) + e.unlessSent()
	case k.SentAt.IsZero() && late < unsentGrace:
		return e.say("it was due at %s, a moment ago; a relay is about to send it", due) + e.unlessSent()
	case k.SentAt.IsZero():
		return e.say("it was due at %s and was never sent to the broker: %s", due, e.relays())
	}
	return e.sent(k)
}

// settled is how long a count may miss a message that has just arrived at the broker or is about to leave it.
const settled = time.Minute

// ahead locates the message of a task that was sent and is due in the given time.
func (e explainer) ahead(k schedule.TaskRow, after time.Duration) string {
	due, sent, again := shown.Instant(k.DueSince()), shown.Instant(k.SentAt), shown.Instant(k.ResendAt)
	if e.Nowhere && after > settled && e.At.Sub(k.SentAt) > settled {
		return e.say("it is due at %s; its message was sent to the broker at %s and is lost, because no queue has a message that could be this one; a relay sends it again from %s on", due, sent, again) + e.unlessSent()
	}
	return e.say("it is due at %s; its message was sent to the broker at %s and waits there; if the message is lost, a relay sends it again from %s on", due, sent, again)
}

// held explains why a task of a paused or limited destination is still in the table.
func (e explainer) held(k schedule.TaskRow, late time.Duration) string {
	due, name := e.say("it was due at %s", shown.Instant(k.DueSince())), cmp.Or(e.Held.Queue, e.Held.Exchange)
	if late < 0 {
		due = e.say("it is due at %s", shown.Instant(k.DueSince()))
	}
	switch since := shown.Instant(e.Held.PausedAt); {
	case !e.Held.Paused():
		waiting := e.count(e.Held.Waiting, "1 due task waits", "%s due tasks wait")
		return e.say("%s and waits in the table: %s is limited (%s), and %s", due, name, e.Held.String(), waiting) + e.unlessSent()
	case e.Held.PausedBy != "":
		return e.say("%s and waits in the table: %s has been paused since %s by %s; rabbitdelay tasks resume ends the pause", due, name, since, e.Held.PausedBy)
	default:
		return e.say("%s and waits in the table: %s has been paused since %s; rabbitdelay tasks resume ends the pause", due, name, since)
	}
}

// sent explains why a task that was sent and is due has not been done.
func (e explainer) sent(k schedule.TaskRow) string {
	begin := e.say("it was due at %s and sent at %s, and no handler has committed its effect: ", shown.Instant(k.DueSince()), shown.Instant(k.SentAt))
	d := e.Destination
	switch {
	case k.Attempts > 0:
		return begin + e.say("%s failed, the last error: %s", e.attempts(k.Attempts), e.lastError(k))
	case d != nil && !d.Exists:
		return begin + e.say("the queue %s does not exist", d.Name)
	case d != nil && d.Waiting.Unknown && d.Waiting.Ready == 0:
		return begin + e.say("the queue %s does not report its messages, so it is unknown whether this message is there", d.Name)
	case d != nil && d.Exchange && d.Waiting.Total() > 0:
		to, waiting := k.Destination(), e.count(d.Waiting.Total(), "1 message waits", "%s messages wait")
		return begin + e.say("%s in the route queue %s, because the exchange %s has no route for the routing key %s; a binding for this key lets the broker deliver them", waiting, d.Queue, to.Exchange, strconv.Quote(to.RoutingKey))
	case d != nil && d.Unconsumed():
		return begin + e.say("the queue %s has no consumer, and %s", d.Name, e.count(d.Waiting.Ready, "1 ready message", "%s ready messages"))
	case d != nil && d.Waiting.Ready > 0 && d.Consumers != nil:
		ready, consumers := e.count(d.Waiting.Ready, "1 message is", "%s messages are"), e.count(*d.Consumers, "1 consumer", "%s consumers")
		return begin + e.say("%s ready in the queue %s before %s", ready, d.Name, consumers)
	}
	if to := k.Destination(); e.Route != "" && e.routeHidden() {
		return begin + e.say("its message is in transit, held by a consumer, or lost, or it waits in the route queue %s, because the exchange %s has no route for it, which only the management API shows (broker.management_url); if it is lost, the relay sends it again from %s on", e.Route, to.Exchange, shown.Instant(k.ResendAt))
	}
	return begin + e.say("its message is in transit, held by a consumer, or lost; if it is lost, the relay sends it again from %s on", shown.Instant(k.ResendAt))
}

// routeHidden reports whether the messages in the task's route queue are not counted. Over AMQP, a route queue seems
// to be empty, because its messages expire immediately and are not ready while the broker tries to forward them.
func (e explainer) routeHidden() bool {
	if e.Destination != nil {
		return e.Destination.Waiting.InTransit() == nil
	}
	return e.notSeen(doctor.AreaManagement)
}

// unlessSent returns a clause that says that no relay is running. It is empty if a relay is running or the relays are
// unknown.
func (e explainer) unlessSent() string {
	if e.Relays == nil || slices.ContainsFunc(e.Relays, func(r taskview.Relay) bool { return r.Running(e.At) }) {
		return ""
	}
	return e.say("; ") + e.relays()
}

func (e explainer) dead(m inspect.DeadLetter) string {
	since := ""
	if !m.Died.IsZero() {
		since = e.say(" since %s", shown.Instant(m.Died))
	}
	if m.Reason == inspect.ReasonParked {
		to := m.Destination.String()
		if to != "" {
			to = " " + to
		}
		return e.say("it is parked in %s%s: when it was due, no queue was bound for its destination%s; once one is bound, rabbitdelay requeue sends it there", m.Queue, since, to)
	}
	why := m.Reason
	switch m.Reason {
	case inspect.ReasonRejected:
		why = e.say("its handler rejected it")
	case inspect.ReasonAttempts:
		why = e.say("its %s failed", e.attempts(m.Attempt))
	case inspect.ReasonDeliveries:
		why = e.say("it was delivered repeatedly without an outcome")
	case inspect.ReasonExpired, inspect.ReasonMaxLen, inspect.ReasonDeliveryLimit:
		why = e.say("the broker took it out of its queue (%s)", m.Reason)
	case "":
		why = e.say("the reason is not recorded")
	}
	text := e.say("it is a dead letter in %s%s: %s", m.Queue, since, why)
	if m.Error != "" {
		text += e.say(", the last error: %s", m.Error)
	}
	return text + e.say("; rabbitdelay requeue sends it again")
}

func (e explainer) unknown() string {
	text := e.say("nothing is known about this id")
	if !e.searched() || !e.Complete() {
		text = e.say("nothing is known about this id in the parts that could be inspected")
	}
	switch n := len(e.Waiting); {
	case n == 1:
		text += e.say("; it may be among the messages of the delay queue %s, which cannot be searched without making them late", e.Waiting[0].Queue)
	case n > 1:
		text += e.say("; it may be in one of %s delay queues that are not empty, whose messages cannot be searched without making them late", strconv.Itoa(n))
	}
	switch n := len(e.Unsearched); {
	case n == 1:
		text += e.say("; it may be among the messages of the queue %s, which is not searched because its consumers would have to wait", e.Unsearched[0])
	case n > 1:
		text += e.say("; it may be in one of %s destinations' queues that are not empty, which are not searched because their consumers would have to wait", strconv.Itoa(n))
	}
	switch n := len(e.Stuck); {
	case n == 1:
		text += e.say("; it may be among the messages of the route queue %s, for which the exchange has no route", e.Stuck[0].Queue)
	case n > 1:
		text += e.say("; it may be in one of %s route queues whose messages wait because their exchanges have no route for them", strconv.Itoa(n))
	case e.notSeen(doctor.AreaManagement):
		text += e.say("; it may wait in a route queue, because its exchange has no route for it, which only the management API shows (broker.management_url)")
	}
	return text + e.say("; a consumer may hold it, it may have been handled without a record, or it may never have been sent")
}
