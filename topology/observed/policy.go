package observed

import (
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// Policy is a policy of a virtual host: it sets arguments of the queues and
// exchanges whose names match.
type Policy struct {
	Name       string
	Operator   bool   // an operator policy, which users cannot override
	Pattern    string // regular expression, not anchored
	ApplyTo    string // all, queues, classic_queues, quorum_queues, streams, exchanges
	Priority   int    // of the matching ones the highest applies
	Definition map[string]any
}

// Effective is the merged definition that applies to an object, and its
// sources.
type Effective struct {
	Definition     map[string]any
	Source         map[string]string // key -> name of the policy that sets it
	user, operator string            // the names of the two; empty for none
}

// policyFor merges the policies that match a name as the broker does: of the
// matching user policies the one with the highest priority, of the operator
// policies likewise; where both set a number the lower counts, else the
// operator's.
func policyFor(policies []Policy, name string, targets ...string) (Effective, []string) {
	var chosen [2]*Policy
	var broken []string
	for i := range policies {
		p := &policies[i]
		if p.ApplyTo != "" && p.ApplyTo != "all" && !slices.Contains(targets, p.ApplyTo) {
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
	e := Effective{Definition: map[string]any{}, Source: map[string]string{}}
	for _, p := range chosen {
		switch {
		case p == nil:
			continue
		case p.Operator:
			e.operator = p.Name
		default:
			e.user = p.Name
		}
		for k, v := range p.Definition {
			if old, ok := argument.Integer(e.Definition[k]); ok {
				if n, ok := argument.Integer(v); ok && old <= n {
					continue
				}
			}
			e.Definition[k], e.Source[k] = v, p.Name
		}
	}
	return e, broken
}

// matchPattern matches a name as the broker does. Its regular expressions know
// lookahead, which Go's do not; of that it understands what stands at the beginning,
// ^(?!but)(?=and)rest, with which policies leave objects out.
func matchPattern(pattern, name string) (matches, readable bool) {
	if re, err := regexp.Compile(pattern); err == nil {
		return re.MatchString(name), true
	}
	rest, ok := strings.CutPrefix(pattern, "^")
	matches = true
	for ok && (strings.HasPrefix(rest, "(?!") || strings.HasPrefix(rest, "(?=")) {
		var ahead *regexp.Regexp
		wanted := rest[2] == '='
		if ahead, rest, ok = lookahead(rest); ok {
			matches = matches && ahead.MatchString(name) == wanted
		}
	}
	re, err := regexp.Compile("^(?:" + rest + ")")
	if !ok || err != nil {
		return false, false
	}
	return matches && re.MatchString(name), true
}

// lookahead cuts a lookahead off the beginning of a pattern, up to the first
// parenthesis that leaves a whole expression.
func lookahead(pattern string) (ahead *regexp.Regexp, rest string, ok bool) {
	for i := range pattern {
		if pattern[i] != ')' {
			continue
		}
		if re, err := regexp.Compile("^(?:" + pattern[len("(?!"):i] + ")"); err == nil {
			return re, pattern[i+1:], true
		}
	}
	return nil, "", false
}

// AlternateExchange returns that of an exchange, by its arguments or a policy; empty for
// none.
func (l Broker) AlternateExchange(exchange string) string {
	if name, ok := l.Exchanges[exchange].Arguments[argument.AlternateExchange].(string); ok {
		return name
	}
	name, _ := l.PolicyOnExchange(exchange).Definition["alternate-exchange"].(string)
	return name
}

// PolicyOnExchange returns what policies set on an exchange.
func (l Broker) PolicyOnExchange(name string) Effective {
	e, _ := policyFor(l.Policies, name, "exchanges")
	return e
}

// PolicyOn returns what policies set on a queue, and the names of policies whose
// patterns cannot be read. Their list is of now; what a queue itself reports is up to
// 5 s old, and counts where the list cannot be read.
func (l Broker) PolicyOn(q topology.Queue) (e Effective, unreadable []string) {
	e, broken := policyFor(l.Policies, q.Name, "queues", string(q.QueueType())+"_queues")
	if found, ok := l.Queues[q.Name]; ok && found.ArgumentsKnown && (!l.PoliciesKnown || len(broken) > 0) {
		return found.effective(), nil
	}
	return e, broken
}

// WithCurrentPolicies returns the broker as its list of policies has it now. What
// queues themselves report is older, and stays only where a pattern of the list
// cannot be read.
func (l Broker) WithCurrentPolicies() Broker {
	if !l.PoliciesKnown {
		return l
	}
	queues := make(map[string]Queue, len(l.Queues))
	for name, q := range l.Queues {
		e, broken := policyFor(l.Policies, name, "queues", string(q.Type)+"_queues")
		if len(broken) == 0 {
			q.EffectivePolicy, q.Policy, q.OperatorPolicy = e.Definition, e.user, e.operator
		}
		queues[name] = q
	}
	l.Queues = queues
	return l
}

func (q Queue) effective() Effective {
	names := slices.DeleteFunc([]string{q.Policy, q.OperatorPolicy}, func(n string) bool { return n == "" })
	e := Effective{Definition: q.EffectivePolicy, Source: map[string]string{}}
	for k := range q.EffectivePolicy {
		e.Source[k] = strings.Join(names, "+")
	}
	return e
}
