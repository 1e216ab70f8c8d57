package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ours reports whether an object belongs to the delay strategies.
func (x *examination) ours(name string) bool { return strings.HasPrefix(name, x.cfg.Prefix+".") }

// clientConnections is how many connections one client uses.
const clientConnections = 3

func (x *examination) checkMissing() {
	missing := map[topology.Kind][]string{}
	there := false
	retired, gone := x.retired(), map[string]bool{} // layout tags whose bindings are reported as missing
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
	if n := x.snap.Live.ConnectionLimit; n > 0 && n < clientConnections {
		x.found(Finding{ID: "connection-limit", Severity: SeverityCritical,
			What: fmt.Sprintf("The virtual host %q allows %s, but one client uses three.", x.cfg.Vhost, shown.Count(n, "connection", "connections")),
			Why:  "A client publishes on one connection, consumes on another, and declares destinations on a third. Without one of them it cannot send, or cannot consume.",
			Fix:  x.ctl("set_vhost_limits", `{"max-connections": 100}`) + "   # or as many as all programs use together",
		})
	}
	if full, ok := errors.AsType[*plan.QuotaError](x.plan.Quota()); ok {
		x.found(Finding{ID: "queue-limit", Severity: SeverityCritical,
			What: "The missing queues exceed the limit: " + full.Figures() + ".",
			Why:  "Apply fails, and so does every client that declares objects.",
			Fix:  plan.QuotaAdvice,
		})
		return
	}
	if !there && len(missing[topology.KindExchange]) > 0 {
		x.found(Finding{ID: "topology-missing", Severity: SeverityWarning,
			What: fmt.Sprintf("The virtual host %q has no delay topology.", x.cfg.Vhost),
			Why:  "The first client that is allowed to declare objects creates it. Until then, clients that may not declare objects (broker.declare: nothing) fail.",
			Fix:  x.run("apply"),
		})
		return
	}
	for _, m := range []struct {
		kind      topology.Kind
		one, many string
		why       string
	}{
		{topology.KindExchange, "exchange is", "exchanges are", "Messages that should pass through them are returned to their sender or parked."},
		{topology.KindQueue, "queue is", "queues are", "A message whose delay needs a missing queue is returned to its sender, which declares the queue again if it is allowed to, or is parked on its way. " +
			"If every attempt to declare a queue is refused with cluster_not_formed, see \"A queue without a process\" in docs/operations.md."},
		{topology.KindBinding, "binding is", "bindings are", "Messages that need a missing binding are returned to their sender or parked. A destination without its binding receives nothing."},
	} {
		names := missing[m.kind]
		x.about(names, Finding{ID: string(m.kind) + "-missing", Severity: SeverityCritical,
			What: fmt.Sprintf("%s missing: %s.", shown.Count(len(names), m.one, m.many), list(names)),
			Why:  m.why, Fix: x.run("apply"),
		})
	}
	for _, tag := range slices.Sorted(maps.Keys(gone)) {
		x.notef("the layout %s is not on the broker, and destinations are not bound for it: %s", tag, RetiredAdvice)
	}
	if n := x.plan.Count(plan.ActionUnverified); n > 0 {
		x.uncheckedf(AreaBindings, "%s could not be verified, because this needs the management API", shown.Count(n, "binding", "bindings"))
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
		x.differing(steps)
	}
	x.about(once, Finding{ID: "dead-letter-at-most-once", Severity: SeverityCritical,
		What: fmt.Sprintf("%s at most once: %s.", shown.Count(len(once), "queue dead-letters", "queues dead-letter"), list(once)),
		Why: "Without both x-dead-letter-strategy: at-least-once and x-overflow: reject-publish the broker drops a message that the next queue " +
			"cannot accept at that moment.",
		Fix: x.replace(once),
	})
}

func onlyArguments(mismatches []topology.Mismatch, names ...string) bool {
	return len(mismatches) > 0 && !slices.ContainsFunc(mismatches, func(m topology.Mismatch) bool { return !slices.Contains(names, m.Argument) })
}

// replace returns the commands that delete the named queues and exchanges and create them again as configured. For an
// exchange, or for many queues, they replace the whole layout. The commands refuse to delete queues that contain
// messages.
func (x *examination) replace(names []string) string {
	var parts []string
	for _, n := range names {
		l, ok := naming.LayoutOf(x.cfg.Prefix, n)
		_, queue := x.want[n]
		if !queue || len(names) > maxListed { // name the whole layout instead of an exchange, and instead of too many queues
			n = l.Name
		}
		if ok && !slices.Contains(parts, n) {
			parts = append(parts, n)
		}
	}
	if len(parts) == 0 { // all of the names are objects that layouts share
		return x.run("destroy") + " && " + x.run("apply") + "   # when nothing is sent to the layout any more and all its queues have drained; until then, destroy refuses"
	}
	return x.destroy(parts) + " && " + x.run("apply") + "   # destroy refuses while messages wait in these queues; messages that arrive between the two commands are parked"
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
	why := "Messages that it cannot route are not parked. An at-least-once queue that dead-letters to it stops, and all messages behind them wait."
	fix := x.alternatePolicy(s.Name) + "   # helps immediately; then, for clients that declare objects: " + x.replace([]string{s.Name})
	if s.Mismatches[0].Want == nil {
		why = "A message whose delay queue is missing would disappear into that exchange instead of being returned to its sender."
		fix = x.replace([]string{s.Name})
	}
	x.found(Finding{ID: "alternate-exchange", Severity: SeverityCritical, Objects: []string{s.Name}, What: what, Why: why, Fix: fix})
}

// differing reports objects that differ from their definitions in the same way.
func (x *examination) differing(steps []plan.Step) {
	s := steps[0]
	names := texts(steps, func(s plan.Step) string { return s.Name })
	what := fmt.Sprintf("The %s %s differs from its definition: ", s.Kind, s.Name)
	if len(names) > 1 {
		what = fmt.Sprintf("%d queues differ from their definitions, %s: ", len(names), list(names))
	}
	f := Finding{ID: string(s.Kind) + "-differs", Severity: SeverityCritical, Objects: names, What: what + strings.Join(differences(s), "; ") + ".",
		Why: "A broker cannot change an existing object, so apply and declaring clients fail, and the object does not behave as defined.",
	}
	switch {
	case x.ours(s.Name):
		f.Fix = x.replace(names)
	case s.Kind == topology.KindExchange:
		f.Fix = "change the exchange's definition under exchanges to match the broker, or rename the exchange there"
	default: // a destination's queue, or a queue that the file defines
		f.Severity = SeverityWarning
		f.Why = "Apply fails. Clients accept a destination's queue as it is, but then its own arguments decide what happens to the messages that it drops or dead-letters."
		f.Fix = "change the queue's definition under queues to match the broker, or rename the queue there"
	}
	x.found(f)
}

func differences(s plan.Step) []string { return texts(s.Mismatches, topology.Mismatch.String) }

// checkStrays reports bindings of the delay objects that deliver copies of messages to a queue or exchange that is not
// their destination. Each such queue or exchange is reported once.
func (x *examination) checkStrays() {
	to := func(s plan.Stray) string {
		return s.Queue + "\x00" + s.ToExchange + "\x00" + strconv.FormatBool(s.Early)
	}
	strays := slices.SortedStableFunc(slices.Values(x.plan.Strays), func(a, b plan.Stray) int { return cmp.Compare(to(a), to(b)) })
	for _, all := range grouped(strays, to) {
		first := all[0]
		kind, name := "queue", first.Queue
		if first.ToExchange != "" {
			kind, name = "exchange", first.ToExchange
		}
		when, why := "", "A handler there processes messages for other destinations, in addition to their own consumers. If the destination of such a message is gone, the message is not parked, because this binding matches it."
		if first.Early {
			when, why = ", before they are due", "A handler there processes them too early, and their own consumers process them again when they are due."
		}
		objects := texts(all, func(s plan.Stray) string { return s.Binding.String() })
		keys := texts(all, func(s plan.Stray) string { return fmt.Sprintf("%q of %s", s.RoutingKey, s.Exchange) })
		fix := first.Advice()
		if len(all) > 1 {
			fix += fmt.Sprintf("; and the same for the other %d", len(all)-1)
		}
		x.found(Finding{ID: "stray-binding", Severity: SeverityCritical, Objects: objects,
			What: fmt.Sprintf("The %s %s receives copies of messages%s, with the routing key%s %s.", kind, name, when, strings.Repeat("s", min(1, len(all)-1)), list(keys)),
			Why:  why, Fix: fix + "   # or add the binding under bindings, if it is intended",
		})
	}
}
