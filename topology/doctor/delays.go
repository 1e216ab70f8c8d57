package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

// ours reports whether an object belongs to the delay strategies.
func (x *examination) ours(name string) bool { return strings.HasPrefix(name, x.cfg.Prefix+".") }

func (x *examination) checkMissing() {
	missing := map[topology.Kind][]string{}
	there := false
	retired, gone := x.retired(), map[string]bool{} // gone has the tags of layouts whose bindings are missing
	for _, s := range x.plan.Steps {
		switch {
		case s.Action == plan.ActionCreate && retired[s.Name] != "":
			gone[retired[s.Name]] = true
		case s.Action == plan.ActionCreate:
			missing[s.Kind] = append(missing[s.Kind], s.Name)
		case s.Kind == topology.KindExchange && x.ours(s.Name):
			there = true
		}
	}
	if !there && len(missing[topology.KindExchange]) > 0 {
		x.found(Finding{ID: "topology-missing", Severity: SeverityWarning,
			What: fmt.Sprintf("The virtual host %q has none of the delay topology.", x.cfg.Vhost),
			Why:  "The first client that may declare creates it; clients that may not (broker.declare: nothing) fail until then.",
			Mend: x.run("apply"),
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
		x.about(names, Finding{ID: string(m.kind) + "-missing", Severity: SeverityCritical,
			What: fmt.Sprintf("%s missing: %s.", counted(len(names), m.one, m.many), list(names)),
			Why:  m.why, Mend: x.run("apply"),
		})
	}
	for _, tag := range slices.Sorted(maps.Keys(gone)) {
		x.notef("the layout %s is not on the broker, and destinations are not bound for it: %s", tag, RetiredAdvice)
	}
	if n := x.plan.Count(plan.ActionUnverified); n > 0 {
		x.unseenf(AreaBindings, "%s could not be verified; that needs the management API", counted(n, "binding", "bindings"))
	}
}

func (x *examination) checkConflicts() {
	var once []string // queues that dead-letter at most once
	var alike []plan.Step
	for _, s := range x.foreignDiffers(x.plan.Conflicts()) {
		switch {
		case s.Kind == topology.KindQueue && onlyArguments(s.Mismatches, argument.DeadLetterStrategy, argument.Overflow):
			once = append(once, s.Name)
		case s.Kind == topology.KindExchange && onlyArguments(s.Mismatches, argument.AlternateExchange) && x.ours(s.Name):
			x.alternateExchange(s)
		default:
			alike = append(alike, s)
		}
	}
	// Delay queues that differ in the same way share one finding.
	for _, steps := range grouped(alike, func(s plan.Step) string {
		if _, ok := naming.LayoutOf(x.cfg.Prefix, s.Name); ok && s.Kind == topology.KindQueue {
			return strings.Join(differences(s), "\x00")
		}
		return "\x00" + string(s.Kind) + s.Name
	}) {
		x.otherwise(steps)
	}
	x.about(once, Finding{ID: "dead-letter-at-most-once", Severity: SeverityCritical,
		What: fmt.Sprintf("%s at most once: %s.", counted(len(once), "queue dead-letters", "queues dead-letter"), list(once)),
		Why: "Without both x-dead-letter-strategy: at-least-once and x-overflow: reject-publish the broker drops a message that the next queue " +
			"cannot take at that moment.",
		Mend: x.replace(once),
	})
}

func onlyArguments(mismatches []argument.Mismatch, names ...string) bool {
	return len(mismatches) > 0 && !slices.ContainsFunc(mismatches, func(m argument.Mismatch) bool { return !slices.Contains(names, m.Argument) })
}

// replace returns the command that deletes queues and exchanges of layouts and creates them again as described. The
// deletion is refused while they contain messages.
func (x *examination) replace(names []string) string {
	var parts []string
	for _, n := range names {
		l, ok := naming.LayoutOf(x.cfg.Prefix, n)
		_, queue := x.want[n]
		if !queue || len(names) > shown { // an exchange between queues, or so many names that the whole layout is meant
			n = l.Name
		}
		if ok && !slices.Contains(parts, n) {
			parts = append(parts, n)
		}
	}
	if len(parts) == 0 { // only objects that layouts share
		return x.run("destroy") + " && " + x.run("apply") + "   # when nothing is sent any more and all has drained; destroy refuses before"
	}
	return x.destroy(parts) + " && " + x.run("apply") + "   # destroy refuses while messages wait in them; what comes in between is parked"
}

// alternatePolicy returns the command for a policy that parks unroutable messages of an exchange.
func (x *examination) alternatePolicy(exchange string) string {
	return x.ctl("set_policy", "--apply-to", "exchanges", "delay-alternate", "^"+regexp.QuoteMeta(exchange)+"$",
		fmt.Sprintf(`{"alternate-exchange":%q}`, topology.ParkedQueue(x.cfg.Prefix)))
}

func (x *examination) alternateExchange(s plan.Step) {
	what := fmt.Sprintf("The exchange %s has no alternate exchange.", s.Name)
	if have := s.Mismatches[0].Have; have != nil {
		what = fmt.Sprintf("The exchange %s has the alternate exchange %s.", s.Name, argument.Format(have))
	}
	why := "What it cannot route is not parked: an at-least-once queue before it stops, with everything behind it."
	mend := x.alternatePolicy(s.Name) + "   # helps at once; then, for clients that declare: " + x.replace([]string{s.Name})
	if s.Mismatches[0].Want == nil {
		why = "A message whose delay queue is missing would vanish into it instead of coming back to its sender."
		mend = x.replace([]string{s.Name})
	}
	x.found(Finding{ID: "alternate-exchange", Severity: SeverityCritical, Objects: []string{s.Name}, What: what, Why: why, Mend: mend})
}

// otherwise reports objects that differ from their description in the same way.
func (x *examination) otherwise(steps []plan.Step) {
	s := steps[0]
	names := texts(steps, func(s plan.Step) string { return s.Name })
	what := fmt.Sprintf("The %s %s exists otherwise than described: ", s.Kind, s.Name)
	if len(names) > 1 {
		what = fmt.Sprintf("%d queues exist otherwise than described, %s: ", len(names), list(names))
	}
	f := Finding{ID: string(s.Kind) + "-differs", Severity: SeverityCritical, Objects: names, What: what + strings.Join(differences(s), "; ") + ".",
		Why: "A broker does not change an object in place, so apply and declaring clients fail, and the queue does not behave as its wanted arguments promise.",
	}
	switch {
	case x.ours(s.Name):
		f.Mend = x.replace(names)
	case s.Kind == topology.KindExchange:
		f.Mend = "describe the exchange under exchanges as it is, or give the one described another name"
	default: // a destination's queue, or one described in the file
		f.Severity = SeverityWarning
		f.Why = "apply fails; clients take a destination's queue as it is, but what happens to messages that it gives up on is its own."
		f.Mend = "describe the queue under queues as it is, or give the one described another name"
	}
	x.found(f)
}

func differences(s plan.Step) []string { return texts(s.Mismatches, argument.Mismatch.String) }

// checkStrays reports bindings that lead messages out of the delays to places where nobody sent them. Each queue or
// exchange at the end of such bindings is reported once.
func (x *examination) checkStrays() {
	to := func(s observed.Stray) string {
		return s.Queue + "\x00" + s.ToExchange + "\x00" + strconv.FormatBool(s.Early)
	}
	strays := slices.SortedStableFunc(slices.Values(x.plan.Strays), func(a, b observed.Stray) int { return cmp.Compare(to(a), to(b)) })
	for _, all := range grouped(strays, to) {
		first := all[0]
		kind, name := "queue", first.Queue
		if first.ToExchange != "" {
			kind, name = "exchange", first.ToExchange
		}
		when, why := "", "A handler there acts on messages that are somebody else's, beside their own consumer. What such a binding matches is not parked when its destination is gone, but lost to it."
		if first.Early {
			when, why = ", before they are due", "A handler there acts on them too early, and their own consumer again when they are due."
		}
		objects := texts(all, func(s observed.Stray) string { return s.Binding.String() })
		keys := texts(all, func(s observed.Stray) string { return fmt.Sprintf("%q of %s", s.RoutingKey, s.Exchange) })
		mend := first.Advice()
		if len(all) > 1 {
			mend += fmt.Sprintf("; and likewise the other %d", len(all)-1)
		}
		x.found(Finding{ID: "stray-binding", Severity: SeverityCritical, Objects: objects,
			What: fmt.Sprintf("The %s %s gets copies of messages%s, by the routing key%s %s.", kind, name, when, strings.Repeat("s", min(1, len(all)-1)), list(keys)),
			Why:  why, Mend: mend + "   # or describe it under bindings, if it is meant",
		})
	}
}
