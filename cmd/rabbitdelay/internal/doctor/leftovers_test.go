package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If a destination was deleted and created again after a change of the layout, it is bound only for the new layout. Its
// messages in the old layout will be parked, and the doctor reports this.
func TestLeftoversOfADestinationThatIsNotBound(t *testing.T) {
	for name, c := range map[string]struct {
		bound []string // queues that are bound for the earlier layout
		want  []string // the objects of the finding; nil for no finding
	}{
		"all":                                    {[]string{"q", "delay.route.amq.topic:a.b"}, nil},
		"one recreated":                          {[]string{"delay.route.amq.topic:a.b"}, []string{"q"}},
		"an exchange's route queue":              {[]string{"q"}, []string{"delay.route.amq.topic:a.b"}},
		"another program's, which is next to it": {[]string{"q", "delay.route.amq.topic:a.b", "theirs"}, nil},
	} {
		cfg, snap := healthy(t)
		earlier, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, q := range earlier.Topology().Queues {
			if _, shared := snap.Live.Queues[q.Name]; !shared {
				snap.add(q.Name, plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Arguments: q.Table(), Messages: int64(i % 2 * 4)})
			}
		}
		for _, queue := range c.bound {
			snap.Live.Bindings = append(snap.Live.Bindings, earlier.Bindings(topology.Destination{Queue: queue})...)
		}
		r := Diagnose(cfg, snap)
		i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.ID == "leftover-partly-unbound" })
		if found := i >= 0; found != (c.want != nil) {
			t.Errorf("%s: got the findings %+v, want leftover-partly-unbound with the objects %v, or none if nil", name, r.Findings, c.want)
			continue
		}
		if c.want != nil && !slices.Equal(r.Findings[i].Objects, c.want) {
			t.Errorf("%s: got the objects %v, want %v", name, r.Findings[i].Objects, c.want)
		}
		if all := strings.Contains(strings.Join(r.Notes, "\n"), "all destinations are bound for it"); all != (c.want == nil) {
			t.Errorf(`%s: got the notes %v, want "all destinations are bound for it" in them: %t`, name, r.Notes, c.want == nil)
		}
	}
}
