package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ours tells whether an object belongs to the delay strategies.
func (x *examination) ours(name string) bool { return strings.HasPrefix(name, x.cfg.Prefix+".") }

// checkMissing reports what apply would create.
func (x *examination) checkMissing() {
	missing := map[topology.Kind][]string{}
	there := false
	for _, s := range x.plan.Steps {
		switch {
		case s.Action == topology.Create:
			missing[s.Kind] = append(missing[s.Kind], s.Name)
		case s.Kind == topology.KindExchange && x.ours(s.Name):
			there = true
		}
	}
	if !there && len(missing[topology.KindExchange]) > 0 {
		x.found(Finding{
			ID: "topology-missing", Severity: Warning,
			What: fmt.Sprintf("Nothing of the delay topology is in the virtual host %q.", x.cfg.Vhost),
			Why:  "The first client that may declare creates it; clients that may not (broker.declare: nothing) fail until then.",
			Mend: x.apply(),
		})
		return
	}
	for _, m := range []struct {
		kind      topology.Kind
		one, many string
		why       string
	}{
		{topology.KindExchange, "exchange is", "exchanges are", "Messages that should pass through are returned to their sender or parked."},
		{topology.KindQueue, "queue is", "queues are", "A message whose delay needs a missing queue is returned to its sender, who declares it again if he may, or is parked on its way."},
		{topology.KindBinding, "binding is", "bindings are", "Messages that need it are returned to their sender or parked; a destination without its binding gets nothing."},
	} {
		names := missing[m.kind]
		if len(names) == 0 {
			continue
		}
		x.found(Finding{
			ID: string(m.kind) + "-missing", Severity: Critical, Objects: names,
			What: fmt.Sprintf("%s missing: %s.", counted(len(names), m.one, m.many), list(names)),
			Why:  m.why, Mend: x.apply(),
		})
	}
	if n := x.plan.Count(topology.Unverified); n > 0 {
		x.notef("whether %s, and whether policies change queues, is not known: it needs the management API", counted(n, "binding is there", "bindings are there"))
	}
}

// checkConflicts reports objects that exist with other arguments.
func (x *examination) checkConflicts() {
	var once []string // queues that dead-letter at most once
	for _, s := range x.plan.Conflicts() {
		switch {
		case s.Kind == topology.KindQueue && onlyArguments(s.Mismatches, topology.ArgDeadLetterStrategy, topology.ArgOverflow):
			once = append(once, s.Name)
		case s.Kind == topology.KindExchange && onlyArguments(s.Mismatches, topology.ArgAlternateExchange) && x.ours(s.Name):
			x.alternateExchange(s)
		default:
			x.otherwise(s)
		}
	}
	if len(once) > 0 {
		x.found(Finding{
			ID: "dead-letter-at-most-once", Severity: Critical, Objects: once,
			What: fmt.Sprintf("%s at most once: %s.", counted(len(once), "queue dead-letters", "queues dead-letter"), list(once)),
			Why: "Without both x-dead-letter-strategy: at-least-once and x-overflow: reject-publish the broker drops a message that the next queue " +
				"cannot take at that moment.",
			Mend: x.replaceQueues(once),
		})
	}
}

func onlyArguments(mismatches []topology.Mismatch, names ...string) bool {
	for _, m := range mismatches {
		if !slices.Contains(names, m.Argument) {
			return false
		}
	}
	return len(mismatches) > 0
}

// replaceQueues deletes queues, one that is not empty excepted, and creates them
// as described.
func (x *examination) replaceQueues(names []string) string {
	if len(names) == 1 {
		return x.ctl("delete_queue", names[0], "--if-empty") + " && " + x.apply()
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = shellQuote(n)
	}
	if len(quoted) > shown {
		quoted = append(quoted[:shown], "…")
	}
	return fmt.Sprintf("for q in %s; do %s \"$q\" --if-empty; done; %s", strings.Join(quoted, " "), x.ctl("delete_queue"), x.apply())
}

func (x *examination) alternateExchange(s topology.Step) {
	what := fmt.Sprintf("The exchange %s has no alternate exchange.", s.Name)
	if have := s.Mismatches[0].Have; have != nil {
		what = fmt.Sprintf("The exchange %s has the alternate exchange %s.", s.Name, topology.FormatValue(have))
	}
	why := "What it cannot route is not parked: an at-least-once queue before it stops, with everything behind it."
	if s.Mismatches[0].Want == nil {
		why = "A message whose delay queue is missing would vanish into it instead of coming back to its sender."
	}
	x.found(Finding{
		ID: "alternate-exchange", Severity: Critical, Objects: []string{s.Name}, What: what, Why: why,
		Mend: x.deleteExchange(s.Name) + " && " + x.apply() + "   # while nothing is sent: what arrives in between is returned or lost",
	})
}

func (x *examination) deleteExchange(name string) string {
	return fmt.Sprintf("rabbitmqadmin -V %s delete exchange name=%s", shellQuote(x.cfg.Vhost), shellQuote(name))
}

func (x *examination) otherwise(s topology.Step) {
	parts := make([]string, len(s.Mismatches))
	for i, m := range s.Mismatches {
		parts[i] = m.String()
	}
	f := Finding{
		ID: string(s.Kind) + "-differs", Severity: Critical, Objects: []string{s.Name},
		What: fmt.Sprintf("The %s %s exists otherwise than described: %s.", s.Kind, s.Name, strings.Join(parts, "; ")),
		Why:  "A broker does not change an object in place, so apply and clients that declare fail, and what the arguments are for does not hold.",
	}
	switch {
	case s.Kind == topology.KindExchange:
		f.Mend = x.deleteExchange(s.Name) + " && " + x.apply()
	case x.ours(s.Name):
		f.Mend = x.replaceQueues([]string{s.Name})
	default: // a destination's queue, or one that the file describes
		f.Severity = Warning
		f.Why = "apply fails; clients take a destination's queue as it is, but what happens to messages that it gives up on is its own."
		f.Mend = "describe the queue under queues: as it is, or, when it is empty: " + x.replaceQueues([]string{s.Name})
	}
	x.found(f)
}

// checkPolicies reports what policies do to delay queues, once for each policy
// and setting.
func (x *examination) checkPolicies() {
	type group struct {
		first topology.Warning
		names []string
	}
	var order []string
	groups := map[string]*group{}
	for _, w := range x.plan.Warnings {
		key := strings.Join([]string{w.Policy, w.Key, topology.FormatValue(w.Value)}, "\x00")
		if groups[key] == nil {
			groups[key] = &group{first: w}
			order = append(order, key)
		}
		groups[key].names = append(groups[key].names, w.Name)
	}
	for _, key := range order {
		g := groups[key]
		w := g.first
		if w.Key == "" {
			x.found(Finding{
				ID: "policy-unreadable", Severity: Warning, What: fmt.Sprintf("Whether the policy %s matches delay queues cannot be checked: %s.", w.Policy, w.Effect),
				Why: "A policy that lowers a TTL fires long delays early, and one that expires a queue deletes what waits in it.", Mend: x.apply() + "   # and look again: the broker itself tells what is in force on queues that exist",
			})
			continue
		}
		id, severity := "policy-"+w.Key, Critical
		switch w.Key {
		case "overflow":
			id = "dead-letter-at-most-once"
		case "max-length", "max-length-bytes":
			severity = Warning
		}
		x.found(Finding{
			ID: id, Severity: severity, Objects: g.names,
			What: fmt.Sprintf("%s sets %s to %s on %s: %s.", policyName(w.Policy), w.Key, topology.FormatValue(w.Value),
				counted(len(g.names), "delay "+string(w.Kind), "delay "+string(w.Kind)+"s"), list(g.names)),
			Why:  sentence(w.Effect),
			Mend: x.exempt(w),
		})
	}
	if !x.plan.PoliciesChecked && x.plan.Count(topology.Unverified) == 0 {
		x.notef("policies could not be listed; only what queues themselves report of them was checked")
	}
}

func policyName(name string) string {
	if name == "" {
		return "A policy"
	}
	return "The policy " + strconv.Quote(name)
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] + "." }

// exempt is the command that takes the delay objects out of a policy. The
// broker's regular expressions know lookahead.
func (x *examination) exempt(w topology.Warning) string {
	i := slices.IndexFunc(x.snap.Live.Policies, func(p topology.Policy) bool { return p.Name == w.Policy && p.Definition[w.Key] != nil })
	if i < 0 {
		return x.ctl("list_policies") + "; " + x.ctl("list_operator_policies") + "   # then narrow the pattern of the one that matches, or clear it"
	}
	p := x.snap.Live.Policies[i]
	command := "set_policy"
	if p.Operator {
		command = "set_operator_policy"
	}
	definition, err := json.Marshal(p.Definition)
	if err != nil {
		return x.ctl(strings.Replace(command, "set", "clear", 1), p.Name)
	}
	pattern := `^(?!` + regexpQuote(x.cfg.Prefix) + `\.)(?=.*(?:` + p.Pattern + `))`
	applyTo := p.ApplyTo
	if applyTo == "" {
		applyTo = "all"
	}
	return x.ctl(command, "--priority", fmt.Sprint(p.Priority), "--apply-to", applyTo, p.Name, pattern, string(definition))
}
