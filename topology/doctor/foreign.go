package doctor

import (
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/foreign"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

func (x *examination) checkForeign() {
	for _, e := range x.cfg.Want.Exchanges {
		if foreign.IsDelivery(e.Name) {
			x.checkUnparked(e.Name)
			x.checkSuffixes(e.Name)
		}
	}
}

// checkUnparked reports that unroutable messages block the levels, because the other system does not give its
// delivery exchange an alternate exchange.
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
		what += " " + counted(leaving, "message that is due waits", "messages that are due wait") + " in the levels before it."
	}
	x.found(Finding{ID: "foreign-unparked", Severity: SeverityWarning, Objects: []string{deliver}, What: what,
		Why:  "A message whose destination is gone when it is due stays in its level, which tries again every few minutes. 32 of them stop that level for everybody, the other system's messages included; a classic level loses them.",
		Mend: x.alternatePolicy(deliver) + "   # such messages are parked then; a policy conflicts with nobody's declarations",
	})
}

// checkSuffixes reports destinations whose messages also reach another queue, because the other system binds by the
// end of the routing key.
func (x *examination) checkSuffixes(deliver string) {
	for _, d := range x.cfg.Want.Destinations {
		key := d.Key(x.cfg.Prefix)
		for _, b := range x.snap.Live.Bindings {
			end, ok := strings.CutPrefix(b.RoutingKey, "#.")
			if !ok || b.Exchange != deliver || end == key || !strings.HasSuffix(key, "."+end) {
				continue
			}
			x.found(Finding{ID: "foreign-suffix", Severity: SeverityCritical, Objects: []string{d.String()},
				What: fmt.Sprintf("Messages for %s reach %s too, which is bound to %s by %q.", d, b.Queue+b.ToExchange, deliver, b.RoutingKey),
				Why:  "The other system binds by the end of the routing key, so a name that ends with a dot and another one's name gets both their messages.",
				Mend: "give the destination a name that does not end with ." + end,
			})
		}
	}
}

// foreignDiffers reports another system's objects that differ from their description, and returns the remaining
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
		What: fmt.Sprintf("%s of %s otherwise than described: %s: %s.", counted(len(names), "object", "objects"), system, list(names), strings.Join(differences(first), "; ")),
		Why:  "Apply and declaring clients fail. They are the other system's, and it could not start either if they were changed.",
		Mend: "set delay.queue_type to the type that its queues have (Celery: broker_native_delayed_delivery_queue_type), or broker.declare: nothing   # which takes them as they are",
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
