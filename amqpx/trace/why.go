package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// unsentGrace is how long a working relay may take to send a task that is due.
const unsentGrace = 10 * time.Second

const noError = "no error is recorded"

// Explain returns the sentence for Why, based on the other fields. It does no I/O.
func (t *Trace) Explain() string {
	if t.Task != nil {
		return t.whyTask(*t.Task)
	}
	if i := slices.IndexFunc(t.Records, func(r idempotency.Record) bool { return !r.Guarded }); i >= 0 {
		return fmt.Sprintf("it has happened: its effect in %s was committed at %s", t.Records[i].Scope, shown.Instant(t.Records[i].ProcessedAt))
	}
	if len(t.Records) > 0 {
		r := t.Records[0]
		return fmt.Sprintf("its handler in %s was asked at %s and left the effect out, because a guard (OnlyIf or When) said no", r.Scope, shown.Instant(r.ProcessedAt))
	}
	if len(t.Lying) > 0 {
		return t.whyLying(t.Lying[0])
	}
	return t.whyUnknown()
}

func (t *Trace) whyTask(k schedule.Task) string {
	switch k.Status {
	case schedule.StatusDone:
		return "it has happened: its effect was committed at " + shown.Instant(k.FinishedAt)
	case schedule.StatusCancelled:
		return "it was cancelled at " + shown.Instant(k.FinishedAt) + ", before its effect"
	case schedule.StatusExpired:
		return fmt.Sprintf("its time was over: it was due at %s, was worth doing for %s, and expired at %s", shown.Instant(k.DueSince()), topology.FormatDuration(k.ExpiresAfter), shown.Instant(k.FinishedAt))
	case schedule.StatusFailed:
		attempts := "no recorded attempt"
		if k.Attempts > 0 {
			attempts = shown.Count(k.Attempts, "attempt", "attempts")
		}
		return fmt.Sprintf("it failed at %s after %s: %s; rabbitdelay tasks revive makes it pending again", shown.Instant(k.FinishedAt), attempts, cmp.Or(k.LastError, noError))
	case schedule.StatusRunning:
		for _, e := range t.Effects {
			if e.LeaseUntil.After(t.At) {
				return fmt.Sprintf("a handler of %s works on it, under a lease until %s", e.Queue, shown.Instant(e.LeaseUntil))
			}
		}
		return "a handler began to work on it and its lease is over; a relay makes it pending again" + t.unlessSent()
	case schedule.StatusPending:
	}
	switch late := t.At.Sub(k.DueSince()); {
	case late < 0 && k.SentAt.IsZero():
		return fmt.Sprintf("it is not due before %s; until a relay sends it, it waits in the table", shown.Instant(k.DueSince())) + t.unlessSent()
	case late < 0:
		return fmt.Sprintf("it is not due before %s; its message waits in the broker since %s", shown.Instant(k.DueSince()), shown.Instant(k.SentAt))
	case len(t.Lying) > 0:
		return t.whyLying(t.Lying[0])
	case k.SentAt.IsZero() && k.LastError != "":
		return fmt.Sprintf("it was due at %s and could not be sent to the broker: %s", shown.Instant(k.DueSince()), k.LastError) + t.unlessSent()
	case k.SentAt.IsZero() && late < unsentGrace:
		return fmt.Sprintf("it was due at %s, a moment ago; a relay sends it next", shown.Instant(k.DueSince())) + t.unlessSent()
	case k.SentAt.IsZero():
		return fmt.Sprintf("it was due at %s and was never sent to the broker: %s", shown.Instant(k.DueSince()), schedule.WhoSends(t.Relays, t.At))
	}
	return t.whySent(k)
}

// whySent explains why a task that is due and was sent has not happened.
func (t *Trace) whySent(k schedule.Task) string {
	begin := fmt.Sprintf("it was due at %s and sent at %s, and no handler has committed its effect: ", shown.Instant(k.DueSince()), shown.Instant(k.SentAt))
	d := t.Destination
	switch {
	case k.Attempts > 0:
		return begin + fmt.Sprintf("%s failed, the last error: %s", shown.Count(k.Attempts, "attempt", "attempts"), cmp.Or(k.LastError, noError))
	case d != nil && !d.Exists:
		return begin + "the queue " + d.Name + " does not exist"
	case d != nil && d.Waiting.Unknown && d.Waiting.Ready == 0:
		return begin + "the queue " + d.Name + " does not tell what is in it, so whether its message is there is unknown"
	case d != nil && d.Unconsumed():
		return begin + fmt.Sprintf("the queue %s has no consumer, and %s", d.Name, shown.Count(d.Waiting.Ready, "ready message", "ready messages"))
	case d != nil && d.Waiting.Ready > 0:
		return begin + fmt.Sprintf("%s ready in the queue %s before %s", shown.Count(d.Waiting.Ready, "message is", "messages are"), d.Name, shown.Count(d.Consumers, "consumer", "consumers"))
	}
	return begin + "its message is on its way, in a consumer's hands or lost, and the relay sends a lost one again"
}

// unlessSent returns a clause that no relay is running, or an empty string if one is running or that is unknown.
func (t *Trace) unlessSent() string {
	if t.Relays == nil || slices.ContainsFunc(t.Relays, func(r schedule.Relay) bool { return r.Running(t.At) }) {
		return ""
	}
	return "; " + schedule.WhoSends(t.Relays, t.At)
}

func (t *Trace) whyLying(m inspect.DeadLetter) string {
	since := ""
	if !m.Died.IsZero() {
		since = " since " + shown.Instant(m.Died)
	}
	if m.Reason == inspect.ReasonParked {
		to := m.Destination.String()
		if to != "" {
			to = " " + to
		}
		return fmt.Sprintf("it is parked in %s%s: it was due, and nothing was bound for its destination%s; rabbitdelay requeue sends it there once that exists", m.Queue, since, to)
	}
	why := m.Reason
	switch m.Reason {
	case inspect.ReasonRejected:
		why = "its handler rejected it"
	case inspect.ReasonAttempts:
		why = fmt.Sprintf("its %s failed", shown.Count(m.Attempt, "attempt", "attempts"))
	case inspect.ReasonDeliveries:
		why = "it was delivered again and again without an outcome"
	case inspect.ReasonExpired, inspect.ReasonMaxLen, inspect.ReasonDeliveryLimit:
		why = "the broker took it out of its queue (" + m.Reason + ")"
	case "":
		why = "nothing says why"
	}
	text := fmt.Sprintf("it is a dead letter in %s%s: %s", m.Queue, since, why)
	if m.Error != "" {
		text += ", the last error: " + m.Error
	}
	return text + "; rabbitdelay requeue sends it again"
}

func (t *Trace) whyUnknown() string {
	text := "nothing is known of this id"
	if !t.searched() || !t.Complete() {
		text += " in what could be seen"
	}
	switch n := len(t.Waiting); {
	case n == 1:
		text += "; it may be among the messages of the delay queue " + t.Waiting[0].Queue + ", which cannot be looked at without making them late"
	case n > 1:
		text += fmt.Sprintf("; it may be in one of %d delay queues that are not empty, whose messages cannot be looked at without making them late", n)
	}
	switch n := len(t.Unsearched); {
	case n == 1:
		text += "; it may be among the messages of the queue " + t.Unsearched[0] + ", which is not looked into because its consumers would wait"
	case n > 1:
		text += fmt.Sprintf("; it may be in one of %d destinations' queues that are not empty, which are not looked into because their consumers would wait", n)
	}
	return text + "; or it is in a consumer's hands, was handled without a record, or was never sent"
}
