package doctor

import (
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func (x *examination) checkForeign() {
	for _, e := range x.cfg.Want.Exchanges {
		if foreign.IsDelivery(e.Name) {
			x.checkUnparked(e.Name)
			x.checkSuffixes(e.Name)
		}
	}
}

// checkUnparked reports that unroutable messages block another system's delay queues, because that system does not give
// its delivery exchange an alternate exchange.
func (x *examination) checkUnparked(deliver string) {
	have, there := x.snap.Live.Exchanges[deliver]
	if !there || !have.ArgumentsKnown || !x.snap.Live.PoliciesKnown {
		return
	}
	if x.snap.Live.AlternateExchange(deliver) != "" {
		return
	}
	leaving := int64(0)
	for name, q := range x.snap.Live.Queues {
		if _, ok := foreign.System(name); ok {
			leaving += q.Leaving
		}
	}
	what := fmt.Sprintf("The exchange %s has no alternate exchange.", deliver)
	if leaving > 0 {
		what += " " + shown.Count(leaving, "message that is due waits", "messages that are due wait") + " in the level queues in front of it."
	}
	x.found(Finding{ID: "foreign-unparked", Severity: SeverityWarning, Objects: []string{deliver}, What: what,
		Why: "A message whose destination is gone when it is due stays in its level queue, which tries again every few minutes. 32 such messages stop the level queue for all messages, including those of the other system. A classic level queue loses them.",
		Fix: x.alternatePolicy(deliver) + "   # such messages are then parked; a policy does not conflict with any client's declarations",
	})
}

// checkSuffixes reports destinations whose messages also reach another queue. That happens because the other system's
// bindings match the end of a routing key.
func (x *examination) checkSuffixes(deliver string) {
	for _, d := range x.cfg.Want.Destinations {
		key := d.Key(x.cfg.Prefix)
		for _, b := range x.snap.Live.Bindings {
			end, ok := strings.CutPrefix(b.RoutingKey, "#.")
			if !ok || b.Exchange != deliver || end == key || !strings.HasSuffix(key, "."+end) {
				continue
			}
			x.found(Finding{ID: "foreign-suffix", Severity: SeverityCritical, Objects: []string{d.String()},
				What: fmt.Sprintf("Messages for %s also reach %s, which is bound to %s with %q.", d, b.Queue+b.ToExchange, deliver, b.RoutingKey),
				Why:  "The other system's bindings match the end of the routing key. If a name ends with a dot and the name of another destination, its messages therefore reach both.",
				Fix:  "give the destination a name that does not end with ." + end,
			})
		}
	}
}

// foreignDiffers reports another system's objects that differ from their definitions, and returns the remaining
// steps.
func (x *examination) foreignDiffers(steps []plan.Step) (left []plan.Step) {
	var names []string
	var first plan.Step
	for _, s := range steps {
		if _, ok := foreign.System(s.Name); !ok {
			left = append(left, s)
			continue
		}
		if len(names) == 0 {
			first = s
		}
		names = append(names, s.Name)
	}
	system, _ := foreign.System(first.Name)
	x.about(names, Finding{ID: "foreign-differs", Severity: SeverityCritical,
		What: fmt.Sprintf("%s: %s: %s.", shown.Count(len(names), "object of "+system+" differs from its definition", "objects of "+system+" differ from their definitions"), list(names), strings.Join(differences(first), "; ")),
		Why:  "Apply and declaring clients fail. The objects belong to the other system, which could not start either if they were changed.",
		Fix:  "set delay.queue_type to the type that its queues have (Celery: broker_native_delayed_delivery_queue_type), or broker.declare: nothing   # which uses the objects as they are",
	})
	return left
}

// deliveries returns the exchanges to which destinations are bound.
func deliveries(cfg Config) []string {
	var names []string
	for _, e := range cfg.Want.Exchanges {
		if e.Name == topology.DeliveryExchange(cfg.Prefix) || foreign.IsDelivery(e.Name) {
			names = append(names, e.Name)
		}
	}
	if len(names) == 0 {
		names = []string{topology.DeliveryExchange(cfg.Prefix)}
	}
	return names
}
