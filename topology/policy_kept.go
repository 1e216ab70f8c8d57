package topology

import (
	"fmt"
	"strings"
	"time"
)

// Kept are the queues in which messages lie until somebody handles them: the parked
// queue, and the dead letters of destinations, those included that programs have
// bound by themselves.
func (l Live) Kept(want Topology) []Queue {
	names, destinations := map[string]bool{}, map[string]bool{}
	for _, d := range want.Destinations {
		destinations[d.Queue] = true
		if !d.ToExchange() || d.DeadLetter != "" {
			names[d.DeadLetterQueue()] = true
		}
	}
	if prefix, ok := want.prefix(); ok {
		names[ParkedQueue(prefix)] = true
	}
	for _, q := range l.Delivered(want) {
		destinations[q] = true
		names[l.Queues[q].deadLetterQueue(q)] = true
	}
	described := map[string]Queue{}
	for _, q := range want.Queues {
		described[q.Name] = q
	}
	var out []Queue
	for _, name := range sortedKeys(names) {
		q, ours := described[name]
		found, there := l.Queues[name]
		switch {
		case destinations[name], ours && q.IsDelay(): // judged as such
		case ours:
			out = append(out, q)
		case there && found.ArgumentsKnown:
			out = append(out, found.Described(name))
		}
	}
	return out
}

// deadLetterQueue is where a destination's queue sends its dead letters, by its
// arguments or by custom.
func (q LiveQueue) deadLetterQueue(name string) string {
	if key, ok := q.Arguments[ArgDeadLetterRoutingKey].(string); ok && q.Arguments[ArgDeadLetterExchange] == "" {
		return key
	}
	return Destination{Queue: name}.DeadLetterQueue()
}

// keptWarnings says how messages would leave a kept queue unasked.
func keptWarnings(q Queue, e effectivePolicy) []Warning {
	var out []Warning
	warn := func(mild bool, key, effect string) {
		out = append(out, Warning{
			Kind: KindQueue, Name: q.Name, Policy: e.source[key], Key: key, Value: e.definition[key],
			Effect: effect, Advice: exemptAdvice, Kept: true, Mild: mild,
		})
	}
	gone := "dropped"
	exchange, forwards := e.definition["dead-letter-exchange"]
	if q.DeadLetter != nil { // the argument counts
		exchange, forwards = q.DeadLetter.Exchange, true
	}
	if forwards {
		gone = fmt.Sprintf("sent on to the exchange %q, where requeue does not find them", exchange)
	}
	if ttl, ok := integer(e.definition["message-ttl"]); ok && (q.MessageTTL == nil || ttl < q.MessageTTL.Milliseconds()) {
		warn(forwards, "message-ttl", fmt.Sprintf("messages that nobody has handled after %v would be %s", time.Duration(ttl)*time.Millisecond, gone))
	}
	if _, ok := e.definition["expires"]; ok {
		warn(false, "expires", "the broker would delete the queue, with the messages that lie in it")
	}
	effect := "of a full queue the oldest messages would be " + gone
	if strings.HasPrefix(overflow(q, e), OverflowRejectPublish) {
		effect = "a full queue would refuse messages, which their consumers then hold unacknowledged"
	}
	length := func(key string, own *int64) {
		if limit, ok := integer(e.definition[key]); ok && (own == nil || limit < *own) {
			warn(true, key, effect)
		}
	}
	length("max-length", q.MaxLength)
	length("max-length-bytes", q.MaxLengthBytes)
	if limit, ok := integer(e.definition["delivery-limit"]); ok && limit >= 0 && queueType(q) == Quorum && (q.DeliveryLimit == nil || limit < *q.DeliveryLimit) {
		warn(true, "delivery-limit", "a message that is looked at more often would be "+gone)
	}
	return out
}

// overflow is what a queue does when it is full: of argument and policy a classic
// queue heeds the first, a quorum queue the second.
func overflow(q Queue, e effectivePolicy) string {
	policy, _ := e.definition["overflow"].(string)
	if policy == "" || queueType(q) == Classic && q.Overflow != "" {
		return q.Overflow
	}
	return policy
}
