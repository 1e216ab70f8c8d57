package simulate

import (
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/alike"
)

// mostRuns is the maximum number of times that shrink runs a scenario.
const mostRuns = 200

// shrink removes steps and simplifies the others as long as the scenario fails in the same way.
func shrink(sc *scenario, run func(*scenario) []string) *scenario {
	first := run(sc)
	if len(first) == 0 {
		return sc // the scenario does not fail every time
	}
	runs := 0
	fails := func(x *scenario) bool {
		runs++
		wrong := run(x)
		return len(wrong) > 0 && sameKind(wrong[0], first[0])
	}
	try := func(change func(*scenario)) bool {
		x := *sc
		change(&x)
		if runs > mostRuns || !fails(&x) {
			return false
		}
		sc = &x
		return true
	}
	for size := max(1, len(sc.Steps)/2); size >= 1; size /= 2 {
		for at := 0; at < len(sc.Steps); {
			end := min(at+size, len(sc.Steps))
			if !try(func(x *scenario) { x.Steps = slices.Delete(slices.Clone(sc.Steps), at, end) }) {
				at = end
			}
		}
	}
	for _, plain := range []func(*scenario){
		func(x *scenario) { x.Every = 0 },
		func(x *scenario) { x.Misfire = schedule.MisfireAll },
		func(x *scenario) { x.Group = 1 },
		func(x *scenario) { x.Lead = 0 },
		func(x *scenario) { x.Ahead = 0 },
		func(x *scenario) { x.Latency = 0 },
		func(x *scenario) { x.DBTakes = 0 },
		func(x *scenario) { x.Strategy, x.Version = "radices", "4.3.0" },
		func(x *scenario) { x.Horizon = 6 * time.Hour },
	} {
		try(plain)
	}
	return sc
}

// sameKind reports whether two violations differ only in ids, times and similar values.
func sameKind(a, b string) bool {
	return alike.Text(a[:min(40, len(a))]) == alike.Text(b[:min(40, len(b))])
}
