package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// celery returns the configuration and a snapshot of a broker with Celery's levels and a worker's queue.
func celery(t *testing.T) (Config, Snapshot) {
	t.Helper()
	cfg, s := healthy(t)
	l, err := dlx.NewLevels(dlx.LevelsConfig{Layout: dlx.LayoutCelery})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Want = l.Topology()
	cfg.Want.Destinations = []topology.Destination{{Queue: "celery"}}
	cfg.Want.Bindings = append(cfg.Want.Bindings, l.Bindings(cfg.Want.Destinations[0])...)
	s.Live.Exchanges, s.Live.Queues = map[string]plan.Exchange{}, map[string]plan.Queue{}
	s.Live.Bindings = slices.Clone(cfg.Want.Bindings)
	for _, e := range cfg.Want.Exchanges {
		s.Live.Exchanges[e.Name] = plan.Exchange{ArgumentsKnown: true, Kind: e.Kind, Durable: true, Arguments: e.Table()}
	}
	nodes := []string{"n1", "n2", "n3"}
	dead := topology.Queue{Name: "celery", DeadLetter: &topology.DeadLetter{Exchange: "graveyard"}}
	for _, q := range append(cfg.Want.Queues, dead) {
		s.Live.Queues[q.Name] = plan.Queue{
			ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Arguments: q.Table(), Consumers: 1,
			Members: nodes, Online: nodes, Node: "n1",
		}
	}
	return cfg, s
}

func TestForeignFindings(t *testing.T) {
	parked := policy("delay-alternate", `^celery_delayed_delivery$`, "exchanges", map[string]any{"alternate-exchange": "delay.parked"})
	for _, c := range []struct {
		name  string
		spoil func(*Config, *Snapshot)
		id    string
		texts []string
	}{
		{name: "parked by a policy"},
		{
			name: "as Celery leaves it", id: "foreign-unparked",
			spoil: func(_ *Config, s *Snapshot) {
				s.Live.Policies = nil
				s.leaving("celery_delayed_3", 32)
			},
			texts: []string{"32 messages that are due wait", "delay-alternate", "celery_delayed_delivery", "delay.parked"},
		},
		{
			name: "other arguments", id: "foreign-differs",
			spoil: func(_ *Config, s *Snapshot) {
				for _, name := range []string{"celery_delayed_3", "celery_delayed_4"} {
					s.alter(name, func(q *plan.Queue) {
						q.Type = topology.Classic
						q.Arguments["x-queue-type"] = "classic"
						delete(q.Arguments, "x-dead-letter-strategy")
					})
				}
			},
			texts: []string{"2 objects of celery", "delay.queue_type"},
		},
		{
			name: "its own binding",
			spoil: func(_ *Config, s *Snapshot) {
				s.Live.Bindings = append(s.Live.Bindings, topology.Binding{Exchange: "celery_delayed_delivery", ToExchange: "tasks", RoutingKey: "#.celery"})
			},
		},
		{
			name: "a name that ends like another", id: "foreign-suffix",
			spoil: func(c *Config, s *Snapshot) {
				c.Want.Destinations = append(c.Want.Destinations, topology.Destination{Queue: "eu.celery"})
				s.Live.Bindings = append(s.Live.Bindings, topology.Binding{Exchange: "celery_delayed_delivery", ToExchange: "tasks", RoutingKey: "#.celery"})
			},
			texts: []string{"Messages for eu.celery also reach tasks"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, s := celery(t)
			s.Live.Policies = []plan.Policy{parked}
			if c.spoil != nil {
				c.spoil(&cfg, &s)
			}
			r := Diagnose(cfg, s)
			if len(c.texts) == 0 {
				if !r.Clean() {
					t.Errorf("got the findings %+v, want none", r.Findings)
				}
				return
			}
			i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.ID == c.id })
			if i < 0 {
				t.Fatalf("got the findings %+[2]v, want %[1]s among them", c.id, r.Findings)
			}
			f := r.Findings[i]
			for _, text := range append(c.texts, f.Why) {
				if all := f.What + f.Why + f.Fix; !strings.Contains(all, text) {
					t.Errorf("got the finding %q, want %q in it", all, text)
				}
			}
			for _, f := range r.Findings {
				if strings.Contains(f.Fix, "rabbitdelay destroy") {
					t.Errorf("got the finding %+v, want no advice that deletes Celery's queues", f)
				}
			}
		})
	}
}

// A producer that uses another system's layout needs permissions for that system's exchanges, and none for
// delay.deliver.
func TestForeignNeeds(t *testing.T) {
	cfg, _ := celery(t)
	cfg.Prefix, cfg.Roles = "delay", []Role{RoleProducer}
	var names []string
	for _, n := range Needs(cfg) {
		names = append(names, n.Operation+" "+n.Name)
	}
	for _, want := range []string{"write celery_delayed_27", "write celery_delayed_delivery", "read celery_delayed_delivery"} {
		if !slices.Contains(names, want) {
			t.Errorf("got the permissions %v, want %q among them", names, want)
		}
	}
	if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "delay.") }) {
		t.Errorf("got the permissions %v, want none for rabbitdelay's exchanges", names)
	}
}
