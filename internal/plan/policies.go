package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// policyWarnings checks the policies on delay queues, on the exchanges in front of them, and on the queues that Kept
// returns. It warns if a delay queue would release messages early or lose them, and if a dead-letter queue or the
// parked queue would lose messages.
func policyWarnings(want topology.Topology, live State) []Warning {
	var out []Warning
	unreadable := map[string]bool{}
	for _, q := range want.Queues {
		if q.IsDelay() {
			e, broken := live.PolicyOn(q)
			out = append(out, delayWarnings(q, e)...)
			addAll(unreadable, broken)
		}
	}
	for _, q := range live.Kept(want) {
		e, broken := live.PolicyOn(q)
		out = append(out, keptWarnings(q, e)...)
		addAll(unreadable, broken)
	}
	out = append(out, feedWarnings(want, live)...)
	for _, name := range slices.Sorted(maps.Keys(unreadable)) {
		out = append(out, Warning{
			Kind: topology.KindQueue, Name: "*", Policy: name,
			Effect: "the policy's pattern uses a regular expression that cannot be checked here",
			Advice: "make sure that the pattern does not match delay queues, dead-letter queues or the parked queue",
		})
	}
	return out
}

func addAll(set map[string]bool, names []string) {
	for _, n := range names {
		set[n] = true
	}
}

const exemptAdvice = "narrow the policy's pattern, or give the object a separate policy with a higher priority"

// feedWarnings returns warnings about policies on the exchanges in front of delay queues.
func feedWarnings(want topology.Topology, live State) []Warning {
	delays, feeds := map[string]bool{}, map[string]bool{}
	for _, q := range want.Queues {
		delays[q.Name] = q.IsDelay()
	}
	for _, b := range want.Bindings {
		feeds[b.Exchange] = feeds[b.Exchange] || delays[b.Queue]
	}
	var out []Warning
	for _, x := range want.Exchanges {
		if !feeds[x.Name] || x.AlternateExchange != "" {
			continue
		}
		e := live.PolicyOnExchange(x.Name)
		if v, ok := e.Definition["alternate-exchange"]; ok {
			out = append(out, Warning{
				Kind: topology.KindExchange, Name: x.Name, Policy: e.Source["alternate-exchange"], Key: "alternate-exchange", Value: v,
				Effect: "a message whose delay queue is missing would be routed to that exchange instead of being returned to its publisher",
				Advice: exemptAdvice,
			})
		}
	}
	return out
}

// queueWarnings collects the effects of policies on one queue.
type queueWarnings struct {
	Effective
	q    topology.Queue
	kept bool
	out  []Warning
}

func (w *queueWarnings) add(mild bool, key, effect string) {
	w.out = append(w.out, Warning{
		Kind: topology.KindQueue, Name: w.q.Name, Policy: w.Source[key], Key: key, Value: w.Definition[key],
		Effect: effect, Advice: exemptAdvice, Kept: w.kept, Mild: mild,
	})
}

// lengths adds warnings for length limits if the queue itself has a higher limit or none.
func (w *queueWarnings) lengths(mild bool, effect string) {
	for _, of := range []struct {
		key string
		own *int64
	}{{"max-length", w.q.MaxLength}, {"max-length-bytes", w.q.MaxLengthBytes}} {
		if limit, ok := argument.Integer(w.Definition[of.key]); ok && (of.own == nil || limit < *of.own) {
			w.add(mild, of.key, effect)
		}
	}
}

func (w *queueWarnings) limitsDeliveries() bool {
	limit, ok := argument.Integer(w.Definition["delivery-limit"])
	return ok && limit >= 0 && (w.q.DeliveryLimit == nil || limit < *w.q.DeliveryLimit)
}

// delayWarnings returns the effects of the policies on a delay queue. The broker uses the lower of argument and policy
// for the TTL, the expiry and the lengths. It uses the policy for the overflow of a quorum queue, and the argument for
// dead-lettering.
func delayWarnings(q topology.Queue, e Effective) []Warning {
	w := queueWarnings{q: q, Effective: e}
	if ttl, ok := argument.Integer(e.Definition["message-ttl"]); ok && ttl < q.MessageTTL.Milliseconds() {
		w.add(false, "message-ttl", fmt.Sprintf("delays of %s would fire after %s", topology.FormatDuration(*q.MessageTTL), topology.FormatDuration(time.Duration(ttl)*time.Millisecond)))
	}
	if _, ok := e.Definition["expires"]; ok {
		w.add(false, "expires", "the broker would delete the queue, with the messages that wait in it")
	}
	if v, ok := e.Definition["overflow"]; ok && q.DeadLetter.AtLeastOnce && v != argument.RejectPublish {
		w.add(false, "overflow", "dead-lettering at least once would silently become at most once, which can lose messages")
	}
	if v, ok := e.Definition["dead-letter-strategy"]; ok && !q.DeadLetter.AtLeastOnce && v == argument.AtLeastOnce && q.QueueType() == topology.Quorum {
		w.add(false, "dead-letter-strategy", "the queue would not dead-letter as defined")
	}
	if _, ok := e.Definition["dead-letter-routing-key"]; ok && q.DeadLetter.RoutingKey == nil {
		w.add(false, "dead-letter-routing-key", "every message would lose the routing key that leads to its destination")
	}
	if w.limitsDeliveries() {
		w.add(false, "delivery-limit", "a message that is returned to the queue more often than that would be forwarded before it is due")
	}
	effect := "a full queue would forward its oldest messages before they are due"
	if q.Overflow == argument.RejectPublish {
		effect = "a full queue would refuse messages"
	}
	if q.Native() {
		effect += ", or, with overflow drop-head and nothing but delayed messages in it, keep a processor busy forever"
	}
	w.lengths(false, effect)
	return w.out
}

// Warning describes a policy that keeps an object from working as intended.
type Warning struct {
	Kind   topology.Kind
	Name   string // the object's name
	Policy string // the policy's name; empty if unknown
	Key    string // the key in the policy's definition, e.g. "message-ttl"
	Value  any
	Effect string // what would happen
	Advice string // what to do
	// Kept reports whether the object is a queue in which messages stay until an operator handles them, which is a
	// dead-letter queue or the parked queue.
	Kept bool
	// Mild reports whether the policy removes messages only after a limit on length or deliveries has been reached, or
	// only forwards expired messages to another exchange. Apply does not refuse for such a warning.
	Mild bool
}

func (w Warning) String() string {
	by := "a policy"
	if w.Policy != "" {
		by = fmt.Sprintf("policy %q", w.Policy)
	}
	if w.Key == "" {
		return fmt.Sprintf("%s %q, %s: %s; %s", w.Kind, w.Name, by, w.Effect, w.Advice)
	}
	return fmt.Sprintf("%s %q: %s sets %s to %s: %s; %s", w.Kind, w.Name, by, w.Key, argument.Format(w.Value), w.Effect, w.Advice)
}

// keptWarnings returns warnings about policies that would remove messages automatically from a kept queue (see
// Warning.Kept).
func keptWarnings(q topology.Queue, e Effective) []Warning {
	w := queueWarnings{q: q, Effective: e, kept: true}
	gone := "dropped"
	exchange, forwards := e.Definition["dead-letter-exchange"]
	if q.DeadLetter != nil { // the argument takes precedence
		exchange, forwards = q.DeadLetter.Exchange, true
	}
	if forwards {
		gone = fmt.Sprintf("forwarded to the exchange %q, where requeue does not find them", exchange)
	}
	if ttl, ok := argument.Integer(e.Definition["message-ttl"]); ok && (q.MessageTTL == nil || ttl < q.MessageTTL.Milliseconds()) {
		w.add(forwards, "message-ttl", fmt.Sprintf("messages that have not been handled after %s would be %s", topology.FormatDuration(time.Duration(ttl)*time.Millisecond), gone))
	}
	if _, ok := e.Definition["expires"]; ok {
		w.add(false, "expires", "the broker would delete the queue, with the messages in it")
	}
	effect := "the oldest messages of a full queue would be " + gone
	if strings.HasPrefix(overflow(q, e), argument.RejectPublish) {
		effect = "a full queue would refuse messages, which their consumers then hold unacknowledged"
	}
	w.lengths(true, effect)
	if q.QueueType() == topology.Quorum && w.limitsDeliveries() {
		w.add(true, "delivery-limit", "a message that is returned to the queue more often than that would be "+gone)
	}
	return w.out
}

// overflow returns a queue's overflow behaviour. If both the argument and a policy set it, a classic queue uses the
// argument, and a quorum queue uses the policy.
func overflow(q topology.Queue, e Effective) string {
	policy, _ := e.Definition["overflow"].(string)
	if policy == "" || q.QueueType() == topology.Classic && q.Overflow != "" {
		return q.Overflow
	}
	return policy
}
