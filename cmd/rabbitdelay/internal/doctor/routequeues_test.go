package doctor

import (
	"fmt"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

func TestTooManyRouteQueues(t *testing.T) {
	for queues, want := range map[int]bool{3: false, 4: true} {
		snap := Snapshot{Live: plan.State{Queues: map[string]plan.Queue{"delay.routed": {}, "other.route.x": {}}}}
		for i := range queues {
			snap.Live.Queues[fmt.Sprintf("delay.route.events:order.%d", i)] = plan.Queue{}
		}
		found := false
		for _, f := range Diagnose(Config{MaxRouteQueues: 3}, snap).Findings {
			if f.ID == "route-queues" {
				found = true
				if f.Severity != SeverityWarning || len(f.Objects) != queues {
					t.Errorf("got the finding %+v, want severity %v and %v objects", f, SeverityWarning, queues)
				}
			}
		}
		if found != want {
			t.Errorf("%d route queues with a limit of 3: finding reported = %t, want %t", queues, found, want)
		}
	}
}
