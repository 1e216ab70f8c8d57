package doctor

import (
	"fmt"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

func TestTooManyRouteQueues(t *testing.T) {
	for queues, want := range map[int]bool{3: false, 4: true} {
		snap := Snapshot{Live: observed.Broker{Queues: map[string]observed.Queue{"delay.routed": {}, "other.route.x": {}}}}
		for i := range queues {
			snap.Live.Queues[fmt.Sprintf("delay.route.events:order.%d", i)] = observed.Queue{}
		}
		found := false
		for _, f := range Diagnose(Config{MaxRouteQueues: 3}, snap).Findings {
			if f.ID == "route-queues" {
				found = true
				if f.Severity != SeverityWarning || len(f.Objects) != queues {
					t.Errorf("%+v", f)
				}
			}
		}
		if found != want {
			t.Errorf("%d route queues, at most 3 expected: found %t, want %t", queues, found, want)
		}
	}
}
