package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Warning says that a policy changes a described object so that it no longer
// does what it is for.
type Warning struct {
	Kind   Kind
	Name   string // of the object
	Policy string // the policy's name; empty if unknown
	Key    string // of the policy's definition, e.g. "message-ttl"
	Value  any
	Effect string // what would happen
	Advice string // what to do
}

func (w Warning) String() string {
	by := "a policy"
	if w.Policy != "" {
		by = fmt.Sprintf("policy %q", w.Policy)
	}
	if w.Key == "" {
		return fmt.Sprintf("%s %q, %s: %s; %s", w.Kind, w.Name, by, w.Effect, w.Advice)
	}
	return fmt.Sprintf("%s %q: %s sets %s to %s: %s; %s", w.Kind, w.Name, by, w.Key, FormatValue(w.Value), w.Effect, w.Advice)
}

// effectivePolicy is the merged definition that applies to an object, and its
// sources.
type effectivePolicy struct {
	definition map[string]any
	source     map[string]string // key -> name of the policy that sets it
}

// policyFor merges the policies that match a name as the broker does: of the
// matching user policies the one with the highest priority, of the operator
// policies likewise; where both set a number the lower counts, else the
// operator's.
func policyFor(policies []Policy, name string, targets ...string) (effectivePolicy, []string) {
	var chosen [2]*Policy
	var broken []string
	for i := range policies {
		p := &policies[i]
		if !appliesTo(p.ApplyTo, targets) {
			continue
		}
		matches, readable := matchPattern(p.Pattern, name)
		if !readable {
			broken = append(broken, p.Name)
			continue
		}
		if !matches {
			continue
		}
		slot := 0
		if p.Operator {
			slot = 1
		}
		if chosen[slot] == nil || p.Priority > chosen[slot].Priority {
			chosen[slot] = p
		}
	}
	e := effectivePolicy{definition: map[string]any{}, source: map[string]string{}}
	for _, p := range chosen {
		if p == nil {
			continue
		}
		for k, v := range p.Definition {
			if old, ok := integer(e.definition[k]); ok {
				if n, ok := integer(v); ok && old <= n {
					continue
				}
			}
			e.definition[k], e.source[k] = v, p.Name
		}
	}
	return e, broken
}

// matchPattern matches a name as the broker does. Its regular expressions know
// lookahead, which Go's do not; of that it understands "everything but",
// ^(?!but)rest, with which policies leave objects out.
func matchPattern(pattern, name string) (matches, readable bool) {
	if re, err := regexp.Compile(pattern); err == nil {
		return re.MatchString(name), true
	}
	rest, ok := strings.CutPrefix(pattern, "^(?!")
	if !ok {
		return false, false
	}
	for i := range rest { // the parenthesis that ends the lookahead
		if rest[i] != ')' {
			continue
		}
		but, err := regexp.Compile("^(?:" + rest[:i] + ")")
		if err != nil {
			continue
		}
		if but.MatchString(name) {
			return false, true
		}
		re, err := regexp.Compile("^(?:" + rest[i+1:] + ")")
		return err == nil && re.MatchString(name), err == nil
	}
	return false, false
}

// AlternateExchange is that of an exchange, by its arguments or a policy; empty for
// none.
func (l Live) AlternateExchange(exchange string) string {
	if name, ok := l.Exchanges[exchange].Arguments[ArgAlternateExchange].(string); ok {
		return name
	}
	e, _ := policyFor(l.Policies, exchange, "exchanges")
	name, _ := e.definition["alternate-exchange"].(string)
	return name
}

func appliesTo(applyTo string, targets []string) bool {
	if applyTo == "" || applyTo == "all" {
		return true
	}
	return slices.Contains(targets, applyTo)
}

// policyWarnings checks the policies on delay queues, and on the exchanges that
// feed them. The list of policies tells what is in force now; what a queue
// itself reports is up to 5 s old, and counts where the list cannot be read.
func policyWarnings(want Topology, live Live) []Warning {
	var out []Warning
	feeds := map[string]bool{}
	unreadable := map[string]bool{}
	for _, q := range want.Queues {
		if !q.IsDelay() {
			continue
		}
		for _, b := range want.Bindings {
			if b.Queue == q.Name {
				feeds[b.Exchange] = true
			}
		}
		e, broken := policyFor(live.Policies, q.Name, "queues", string(queueType(q))+"_queues")
		if found, ok := live.Queues[q.Name]; ok && found.ArgumentsKnown && (!live.PoliciesKnown || len(broken) > 0) {
			e = found.effective()
			broken = nil
		}
		for _, name := range broken {
			unreadable[name] = true
		}
		out = append(out, queueWarnings(q, e)...)
	}
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
	for _, name := range sortedKeys(unreadable) {
		out = append(out, Warning{
			Kind: KindQueue, Name: "*", Policy: name,
			Effect: "its pattern uses regular expressions that cannot be checked here",
			Advice: "make sure that it matches no delay queue",
		})
	}
	return out
}

const exemptAdvice = "narrow the policy's pattern, or give the object a policy of its own with a higher priority"

func queueType(q Queue) QueueType {
	if q.Type == "" {
		return Quorum
	}
	return q.Type
}

func (q LiveQueue) effective() effectivePolicy {
	names := []string{}
	for _, n := range []string{q.Policy, q.OperatorPolicy} {
		if n != "" {
			names = append(names, n)
		}
	}
	e := effectivePolicy{definition: q.EffectivePolicy, source: map[string]string{}}
	for k := range q.EffectivePolicy {
		e.source[k] = strings.Join(names, "+")
	}
	return e
}

// queueWarnings says what a policy does to a delay queue. The broker takes the
// lower of argument and policy for TTL, expiry and lengths, the policy for the
// overflow of a quorum queue, and the argument for dead-lettering.
func queueWarnings(q Queue, e effectivePolicy) []Warning {
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
