package topology

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// policyWarnings checks the policies on queues of ours, and on the exchanges that
// feed delay queues. Each queue is judged by what it may never do: a delay queue
// neither fires early nor loses a message, a kept one loses none.
func policyWarnings(want Topology, live Live) []Warning {
	var out []Warning
	unreadable := map[string]bool{}
	for _, q := range want.Queues {
		if q.IsDelay() {
			e, broken := live.effective(q)
			out = append(out, delayWarnings(q, e)...)
			addAll(unreadable, broken)
		}
	}
	for _, q := range live.Kept(want) {
		e, broken := live.effective(q)
		out = append(out, keptWarnings(q, e)...)
		addAll(unreadable, broken)
	}
	out = append(out, feedWarnings(want, live)...)
	for _, name := range sortedKeys(unreadable) {
		out = append(out, Warning{
			Kind: KindQueue, Name: "*", Policy: name,
			Effect: "its pattern uses regular expressions that cannot be checked here",
			Advice: "make sure that it matches no delay queue, no queue of dead letters and not the parked queue",
		})
	}
	return out
}

func addAll(set map[string]bool, names []string) {
	for _, n := range names {
		set[n] = true
	}
}

// effective is what policies set on a queue. Their list is of now; what a queue
// itself reports is up to 5 s old, and counts where the list cannot be read.
func (l Live) effective(q Queue) (e effectivePolicy, unreadable []string) {
	e, broken := policyFor(l.Policies, q.Name, "queues", string(queueType(q))+"_queues")
	if found, ok := l.Queues[q.Name]; ok && found.ArgumentsKnown && (!l.PoliciesKnown || len(broken) > 0) {
		return found.effective(), nil
	}
	return e, broken
}

// WithCurrentPolicies returns the broker as its list of policies has it now. What
// queues themselves report is older, and stays only where a pattern of the list
// cannot be read.
func (l Live) WithCurrentPolicies() Live {
	if !l.PoliciesKnown {
		return l
	}
	queues := make(map[string]LiveQueue, len(l.Queues))
	for name, q := range l.Queues {
		e, broken := policyFor(l.Policies, name, "queues", string(q.Type)+"_queues")
		if len(broken) == 0 {
			q.EffectivePolicy, q.Policy, q.OperatorPolicy = e.definition, e.user, e.operator
		}
		queues[name] = q
	}
	l.Queues = queues
	return l
}

func (q LiveQueue) effective() effectivePolicy {
	names := slices.DeleteFunc([]string{q.Policy, q.OperatorPolicy}, func(n string) bool { return n == "" })
	e := effectivePolicy{definition: q.EffectivePolicy, source: map[string]string{}}
	for k := range q.EffectivePolicy {
		e.source[k] = strings.Join(names, "+")
	}
	return e
}

const exemptAdvice = "narrow the policy's pattern, or give the object a policy of its own with a higher priority"

func queueType(q Queue) QueueType {
	if q.Type == "" {
		return Quorum
	}
	return q.Type
}

// feedWarnings are about policies on the exchanges before delay queues.
func feedWarnings(want Topology, live Live) []Warning {
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
		e, _ := policyFor(live.Policies, x.Name, "exchanges")
		if v, ok := e.definition["alternate-exchange"]; ok {
			out = append(out, Warning{
				Kind: KindExchange, Name: x.Name, Policy: e.source["alternate-exchange"], Key: "alternate-exchange", Value: v,
				Effect: "a message whose delay queue is missing would vanish into it instead of coming back to its publisher",
				Advice: exemptAdvice,
			})
		}
	}
	return out
}

// delayWarnings says what a policy does to a delay queue. The broker takes the
// lower of argument and policy for TTL, expiry and lengths, the policy for the
// overflow of a quorum queue, and the argument for dead-lettering.
func delayWarnings(q Queue, e effectivePolicy) []Warning {
	var out []Warning
	warn := func(key, effect string) {
		out = append(out, Warning{
			Kind: KindQueue, Name: q.Name, Policy: e.source[key], Key: key, Value: e.definition[key],
			Effect: effect, Advice: exemptAdvice,
		})
	}
	if ttl, ok := integer(e.definition["message-ttl"]); ok && ttl < q.MessageTTL.Milliseconds() {
		warn("message-ttl", fmt.Sprintf("delays of %v would fire after %v", *q.MessageTTL, time.Duration(ttl)*time.Millisecond))
	}
	if _, ok := e.definition["expires"]; ok {
		warn("expires", "the broker would delete the queue, with the messages that wait in it")
	}
	if v, ok := e.definition["overflow"]; ok && q.DeadLetter.AtLeastOnce && v != OverflowRejectPublish {
		warn("overflow", "dead-lettering at least once would silently become at most once, which can lose messages")
	}
	if v, ok := e.definition["dead-letter-strategy"]; ok && !q.DeadLetter.AtLeastOnce && v == StrategyAtLeastOnce && queueType(q) == Quorum {
		warn("dead-letter-strategy", "the queue would dead-letter otherwise than described")
	}
	if _, ok := e.definition["dead-letter-routing-key"]; ok && q.DeadLetter.RoutingKey == nil {
		warn("dead-letter-routing-key", "every message would lose the routing key that leads to its destination")
	}
	if limit, ok := integer(e.definition["delivery-limit"]); ok && limit >= 0 && (q.DeliveryLimit == nil || limit < *q.DeliveryLimit) {
		warn("delivery-limit", "a message that is looked at more often would be sent on before it is due")
	}
	effect := "a full queue would send its oldest messages on before they are due"
	if q.Overflow == OverflowRejectPublish {
		effect = "a full queue would refuse messages"
	}
	if q.Native() {
		effect += ", or, with overflow drop-head and nothing but delayed messages in it, keep a processor busy for ever"
	}
	length := func(key string, own *int64) {
		if limit, ok := integer(e.definition[key]); ok && (own == nil || limit < *own) {
			warn(key, effect)
		}
	}
	length("max-length", q.MaxLength)
	length("max-length-bytes", q.MaxLengthBytes)
	return out
}
