package plan

import (
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Policy is a policy of a virtual host. It sets arguments of the queues and exchanges whose names match its pattern.
type Policy struct {
	Name       string
	Operator   bool   // an operator policy, which users cannot override
	Pattern    string // a regular expression, not anchored
	ApplyTo    string // all, queues, classic_queues, quorum_queues, streams, exchanges
	Priority   int    // the matching policy with the highest priority applies
	Definition map[string]any
}

// Effective is the merged policy definition that applies to an object, with the policy that each key comes from.
type Effective struct {
	Definition     map[string]any
	Source         map[string]string // key -> name of the policy that sets it
	user, operator string            // the names of the two policies; empty if there is none
}

// policyFor merges the policies that match a name as the broker does. It chooses the matching user policy and the
// matching operator policy with the highest priority. If both set a number, the lower one is used. For other values the
// operator policy has precedence. It also returns the names of the policies whose patterns cannot be parsed.
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

// matchPattern matches a name as the broker does. The broker's regular expressions support lookahead, which Go's do
// not. matchPattern supports lookahead only at the beginning, as in ^(?!but)(?=and)rest, which is the usual way to
// exclude objects from a policy.
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

// lookahead splits a pattern into the lookahead at its beginning and the rest. The lookahead ends at the first
// parenthesis that makes it a valid expression.
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

// AlternateExchange returns the alternate exchange of an exchange, set by its arguments or a policy. It returns "" if
// there is none.
func (l State) AlternateExchange(exchange string) string {
	if name, ok := l.Exchanges[exchange].Arguments[argument.AlternateExchange].(string); ok {
		return name
	}
	name, _ := l.PolicyOnExchange(exchange).Definition["alternate-exchange"].(string)
	return name
}

// PolicyOnExchange returns the policy settings that apply to an exchange.
func (l State) PolicyOnExchange(name string) Effective {
	e, _ := policyFor(l.Policies, name, "exchanges")
	return e
}

// PolicyOn returns the policy settings that apply to a queue, and the names of policies whose patterns cannot be
// parsed. It evaluates the list of policies, which is current. The settings that the queue itself reports can be 5 s
// old, and are used only if the list is unknown or has a pattern that cannot be parsed.
func (l State) PolicyOn(q topology.Queue) (e Effective, unreadable []string) {
	e, broken := policyFor(l.Policies, q.Name, "queues", string(q.QueueType())+"_queues")
	if found, ok := l.Queues[q.Name]; ok && found.ArgumentsKnown && (!l.PoliciesKnown || len(broken) > 0) {
		return found.effective(), nil
	}
	return e, broken
}

// WithCurrentPolicies returns the state with the queues' policy settings computed from the list of policies. That list
// is more recent than the settings that the queues report themselves, which are kept only if a pattern in the list
// cannot be parsed.
func (l State) WithCurrentPolicies() State {
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
