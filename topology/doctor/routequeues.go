package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// checkRouteCount finds route queues that multiply: a routing key with a number in
// it needs another one for each number.
func (x *examination) checkRouteCount() {
	var names []string
	for name := range x.snap.Live.Queues {
		if strings.HasPrefix(name, x.cfg.Prefix+".route.") {
			names = append(names, name)
		}
	}
	if len(names) <= x.cfg.MaxRouteQueues {
		return
	}
	slices.Sort(names)
	x.found(Finding{
		ID: "route-queues", Severity: SeverityWarning, Objects: names,
		What: fmt.Sprintf("There are %d route queues, more than %d: %s.", len(names), x.cfg.MaxRouteQueues, list(names)),
		Why:  "Each routing key of an exchange destination keeps a quorum queue of its own for ever. Thousands of them cost the broker memory and time.",
		Mend: "Delay to one queue that is bound to the exchange by a pattern, or whose consumer republishes, and delete route queues that are unused and empty; or raise broker.max_route_queues if so many are intended",
	})
}
