package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Warning says that a policy changes an object of ours so that it no longer does
// what it is for.
type Warning struct {
	Kind   Kind
	Name   string // of the object
	Policy string // the policy's name; empty if unknown
	Key    string // of the policy's definition, e.g. "message-ttl"
	Value  any
	Effect string // what would happen
	Advice string // what to do
	// Kept reports whether the object is a queue in which messages lie until somebody
	// handles them: dead letters, or the parked queue.
	Kept bool
	// Mild reports whether messages are lost only once a bound is reached. Apply does
	// not refuse then.
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
	return fmt.Sprintf("%s %q: %s sets %s to %s: %s; %s", w.Kind, w.Name, by, w.Key, FormatValue(w.Value), w.Effect, w.Advice)
}

// effectivePolicy is the merged definition that applies to an object, and its
// sources.
type effectivePolicy struct {
	definition     map[string]any
	source         map[string]string // key -> name of the policy that sets it
	user, operator string            // the names of the two; empty for none
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
		switch {
		case p == nil:
			continue
		case p.Operator:
			e.operator = p.Name
		default:
			e.user = p.Name
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
