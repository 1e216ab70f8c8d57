package dlx_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// declared contains what another system declares. The file celery.json was recorded by running kombu's
// native_delayed_delivery.py on a channel that records calls, and nservicebus.json follows DelayInfrastructure.cs from
// NServiceBus.RabbitMQ line by line.
type declared struct {
	Exchanges []struct{ Name, Type string }
	Queues    []struct {
		Name      string
		Arguments map[string]any
	}
	Bindings []struct {
		Exchange, Queue string
		ToExchange      string `json:"to_exchange"`
		RoutingKey      string `json:"routing_key"`
	}
}

type publishedKey struct {
	Seconds    int
	RoutingKey string `json:"routing_key"`
	Exchange   string
}

func fixture(t *testing.T, system string) map[string]json.RawMessage {
	t.Helper()
	data, err := os.ReadFile("testdata/" + system + ".json")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &parts); err != nil {
		t.Fatal(err)
	}
	return parts
}

func part[T any](t *testing.T, parts map[string]json.RawMessage, name string) (v T) {
	t.Helper()
	if err := json.Unmarshal(parts[name], &v); err != nil {
		t.Fatalf("reading the part %s: got %v, want no error", name, err)
	}
	return v
}

func newLevels(t failer, c dlx.LevelsConfig) *dlx.Levels {
	t.Helper()
	s, err := dlx.NewLevels(c)
	if err != nil {
		t.Fatalf("NewLevels with %+v: got %v, want a strategy", c, err)
	}
	return s
}

var levelsConfigs = []dlx.LevelsConfig{
	{Layout: dlx.LayoutNServiceBus}, {Layout: dlx.LayoutCelery}, {Layout: dlx.LayoutCelery, QueueType: topology.Classic},
}

// lines returns broker objects as strings, which can be compared and printed.
func lines(t topology.Topology) []string {
	var out []string
	for _, e := range t.Exchanges {
		out = append(out, fmt.Sprint("exchange ", e.Name, " ", e.Kind, " ", e.AutoDelete, e.Internal, " ", e.Table()))
	}
	for _, q := range t.Queues {
		out = append(out, fmt.Sprint("queue ", q.Name, " ", q.Table()))
	}
	for _, b := range t.Bindings {
		out = append(out, fmt.Sprint("binding ", b.Exchange, " ", b.Queue, " ", b.ToExchange, " ", b.RoutingKey, " ", b.Arguments))
	}
	slices.Sort(out)
	return out
}

// Levels declares exactly what the other system declares, so that either program can start first. In addition, it
// declares only the parked queue and its exchange.
func TestLevelsAreTheirs(t *testing.T) {
	for _, c := range levelsConfigs {
		c.QueueType = cmp.Or(c.QueueType, topology.Quorum)
		want := part[declared](t, fixture(t, c.Layout), string(c.QueueType))
		theirs := topology.Topology{}
		for _, e := range want.Exchanges {
			theirs.Exchanges = append(theirs.Exchanges, topology.Exchange{Name: e.Name, Kind: e.Type})
		}
		var queues []string
		for _, q := range want.Queues {
			for k, v := range q.Arguments {
				if f, ok := v.(float64); ok {
					q.Arguments[k] = int64(f)
				}
			}
			queues = append(queues, fmt.Sprint("queue ", q.Name, " ", q.Arguments))
		}
		for _, b := range want.Bindings {
			theirs.Bindings = append(theirs.Bindings, topology.Binding{Exchange: b.Exchange, Queue: b.Queue, ToExchange: b.ToExchange, RoutingKey: b.RoutingKey})
		}
		all := append(lines(theirs), queues...)
		all = append(all, lines(topology.ParkedTopology(topology.DefaultPrefix))...)
		slices.Sort(all)
		got := lines(newLevels(t, c).Topology())
		for _, l := range all {
			if !slices.Contains(got, l) {
				t.Errorf("%s %s: the topology has no %q, want it, because the other system declares it", c.Layout, c.QueueType, l)
			}
		}
		for _, l := range got {
			if !slices.Contains(all, l) {
				t.Errorf("%s %s: the topology has %q, want only what the other system declares", c.Layout, c.QueueType, l)
			}
		}
		for _, name := range namesOf(newLevels(t, c).Topology()) {
			system, ok := foreign.System(name)
			if parked := name == topology.ParkedQueue(topology.DefaultPrefix); ok == parked || ok && system != c.Layout {
				t.Errorf("foreign.System(%q) = %q, %t, want %s, true for all names except the parked queue's", name, system, ok, c.Layout)
			}
		}
	}
}

func namesOf(t topology.Topology) []string {
	var names []string
	for _, e := range t.Exchanges {
		names = append(names, e.Name)
	}
	for _, q := range t.Queues {
		names = append(names, q.Name)
	}
	return names
}

// The routing keys are the other system's. The exchanges may differ: Celery always publishes to the exchange of the
// highest level, whereas Levels and NServiceBus publish to that of the highest level at which the message waits.
func TestLevelsKeysAreTheirs(t *testing.T) {
	for system, queue := range map[string]string{dlx.LayoutNServiceBus: "Sales.Orders", dlx.LayoutCelery: "celery"} {
		s := newLevels(t, dlx.LevelsConfig{Layout: system})
		for _, want := range part[[]publishedKey](t, fixture(t, system), "keys") {
			r, err := s.Route(topology.Destination{Queue: queue}, time.Duration(want.Seconds)*time.Second-time.Millisecond, 0)
			if err != nil {
				t.Fatal(err)
			}
			if r.RoutingKey != want.RoutingKey || system == dlx.LayoutNServiceBus && r.Exchange != want.Exchange {
				t.Errorf("%s, %d s: got the key %s and the exchange %s, want %s and %s", system, want.Seconds, r.RoutingKey, r.Exchange, want.RoutingKey, want.Exchange)
			}
			header, ok := r.Headers[foreign.HeaderNServiceBusDelay]
			if system == dlx.LayoutNServiceBus && header != int32(want.Seconds) || system != dlx.LayoutNServiceBus && ok {
				t.Errorf("%s, %d s: got the header %v, want the seconds for NServiceBus and none otherwise", system, want.Seconds, header)
			}
			if key, ok := dlx.DestinationKey(r.RoutingKey); !ok || key != queue {
				t.Errorf("DestinationKey(%q) = %q, %t, want %q, true", r.RoutingKey, key, ok, queue)
			}
		}
	}
}

// A message arrives at an endpoint once, even if the other system's own bindings exist alongside rabbitdelay's.
func TestLevelsAlongsideForeignBindings(t *testing.T) {
	dests := []topology.Destination{{Queue: "Sales"}, {Queue: "Billing.Sales"}, {Exchange: "ex.topic", RoutingKey: "a"}}
	var strategies []strategy
	var all []journey
	for _, c := range levelsConfigs[:2] {
		s := newLevels(t, c)
		strategies = append(strategies, s)
		for _, d := range dests[:1] { // with the other system's bindings, Sales also receives messages for Billing.Sales; rabbitdelay's bindings are exact to avoid that
			for _, delay := range []time.Duration{0, time.Millisecond, 90 * time.Second, s.MaxDelay()} {
				r, err := s.Route(d, delay, 0)
				if err != nil {
					t.Fatalf("Route with a delay of %v: got %v, want no error", delay, err)
				}
				all = append(all, journey{r, d})
			}
		}
	}
	top := world(t, dests, strategies...)
	top.Exchanges = append(top.Exchanges, topology.Exchange{Name: "Sales", Kind: "fanout"})
	top.Bindings = append(top.Bindings,
		topology.Binding{Exchange: "nsb.v2.delay-delivery", ToExchange: "Sales", RoutingKey: "#.Sales"},
		topology.Binding{Exchange: "Sales", Queue: "Sales"},
		topology.Binding{Exchange: "celery_delayed_delivery", Queue: "Sales", RoutingKey: "#.Sales"})
	if _, err := arrive(t, top, all...); err != nil {
		t.Error(err)
	}
}

// With any delay and tolerance, and with both layouts and all destinations on one broker, no message is early, takes
// more hops than necessary, or reaches another destination's queue.
func TestLevelsRoutes(t *testing.T) {
	dests := destinations()
	var strategies []strategy
	var all []journey
	rs := radices(dlx.BucketConfig{Layout: dlx.LayoutBinary})
	for _, c := range levelsConfigs[:2] {
		s := newLevels(t, c)
		strategies = append(strategies, s)
		for _, d := range dests {
			if r, err := s.Route(d, time.Minute, 0); err == nil {
				all = append(all, journey{r, d})
			} else if len(d.TargetQueue("delay")) < 180 {
				t.Fatalf("destination %v: got %v, want a route, because its name is shorter than 180 bytes", d, err)
			}
		}
		rapid.Check(t, func(t *rapid.T) {
			dest := rapid.SampledFrom(dests[:40]).Draw(t, "destination")
			all = append(all, journey{checkRoute(t, s, rs, dest, drawDelay(t, s, s.Resolution(), rs), drawTolerance(t)), dest})
		})
	}
	if _, err := arrive(t, world(t, dests, strategies...), all...); err != nil {
		t.Error(err)
	}
}

func TestLevelsRefuse(t *testing.T) {
	s := newLevels(t, dlx.LevelsConfig{Layout: dlx.LayoutCelery})
	for text, err := range map[string]error{
		"celery strategy: delay 3106d21h24m15.000000001s exceeds the longest delay of the layout celery": second(
			s.Route(topology.Destination{Queue: "q"}, s.MaxDelay()+1, 0)),
		"belongs to the delay": second(s.Route(topology.Destination{Queue: "celery_delayed_3"}, 0, 0)),
		"is negative":          second(s.Route(topology.Destination{Queue: "q"}, -1, 0)),
		"a routing key holds":  second(s.Route(topology.Destination{Queue: strings.Repeat("q", 200)}, 0, 0)),
		"Layout":               second(dlx.NewLevels(dlx.LevelsConfig{Layout: "clock"})),
		"QueueType":            second(dlx.NewLevels(dlx.LevelsConfig{Layout: dlx.LayoutNServiceBus, QueueType: topology.Classic})),
	} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("an invalid configuration or destination: got %v, want an error with %q", err, text)
		}
	}
}

func second[T any](_ T, err error) error { return err }
