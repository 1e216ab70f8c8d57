package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// checkStrays reports bindings that lead messages out of the delays to where nobody
// sent them, once for each queue or exchange that gets them.
func (x *examination) checkStrays() {
	to := func(s observed.Stray) string {
		return s.Queue + "\x00" + s.ToExchange + "\x00" + strconv.FormatBool(s.Early)
	}
	strays := slices.SortedStableFunc(slices.Values(x.plan.Strays), func(a, b observed.Stray) int { return cmp.Compare(to(a), to(b)) })
	for len(strays) > 0 {
		n := 1
		for n < len(strays) && to(strays[n]) == to(strays[0]) {
			n++
		}
		x.stray(strays[:n])
		strays = strays[n:]
	}
}

// stray reports bindings with one destination.
func (x *examination) stray(all []observed.Stray) {
	first := all[0]
	kind, name := "queue", first.Queue
	if first.ToExchange != "" {
		kind, name = "exchange", first.ToExchange
	}
	when, why := "", "A handler there acts on messages that are somebody else's, beside their own consumer. What such a binding matches is not parked when its destination is gone, but lost to it."
	if first.Early {
		when, why = ", before they are due", "A handler there acts on them too early, and their own consumer again when they are due."
	}
	var objects, keys []string
	for _, s := range all {
		objects = append(objects, s.Binding.String())
		keys = append(keys, fmt.Sprintf("%q of %s", s.RoutingKey, s.Exchange))
	}
	mend := first.Advice()
	if len(all) > 1 {
		mend += fmt.Sprintf("; and likewise the other %d", len(all)-1)
	}
	x.found(Finding{
		ID: "stray-binding", Severity: SeverityCritical, Objects: objects,
		What: fmt.Sprintf("The %s %s gets copies of messages%s, by the routing key%s %s.", kind, name, when, strings.Repeat("s", min(1, len(all)-1)), list(keys)),
		Why:  why,
		Mend: mend + "   # or describe it under bindings, if it is meant",
	})
}
