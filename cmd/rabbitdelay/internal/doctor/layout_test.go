package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// LayoutOf finds the layout, including its tag, from the name of every object that a strategy creates, except shared
// objects.
func TestLayoutOfEveryStrategy(t *testing.T) {
	type strategy interface {
		Topology() topology.Topology
		Bindings(d topology.Destination) []topology.Binding
	}
	made := map[string]strategy{}
	keep := func(name string, s strategy, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		made[name] = s
	}
	for name, c := range map[string]dlx.BucketConfig{
		"x.bucket": {}, "x.bucket.hex": {Layout: "hex"}, "x.bucket.binary": {Layout: "binary"}, "x.bucket.clock-100ms": {Resolution: 100 * time.Millisecond},
		"x.bucket.r3x3": {Radices: []int{3, 3}}, "x.bucket.r2-1h": {Radices: []int{2}, Resolution: time.Hour},
	} {
		for qt, suffix := range map[topology.QueueType]string{topology.Quorum: "", topology.Classic: "-classic"} {
			for _, checked := range []bool{false, true} {
				c.Prefix, c.QueueType, c.TopicPermissions = "x", qt, checked
				s, err := dlx.NewBucket(c)
				if name == "x.bucket" && qt == topology.Classic {
					suffix = ".classic"
				}
				keep(name+suffix+map[bool]string{true: " checked"}[checked], s, err)
			}
		}
	}
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Prefix: "x", Delays: []time.Duration{time.Minute, 36 * time.Hour}})
	keep("x.ttl", ttl, err)
	ttl, err = dlx.NewTTL(dlx.TTLConfig{Prefix: "x", Delays: []time.Duration{time.Minute}, QueueType: topology.Classic, TopicPermissions: true})
	keep("x.ttl.classic checked", ttl, err)
	p, err := plugin.New(plugin.Config{Prefix: "x"})
	keep("x.plugin", p, err)
	for name, checked := range map[string]bool{"x.native": false, "x.native checked": true} {
		n, err := dlx.NewNative(dlx.NativeConfig{Prefix: "x", Queues: 12, TopicPermissions: checked})
		keep(name, n, err)
	}

	for name, s := range made {
		want := naming.Layout{Name: strings.TrimSuffix(name, " checked")}
		want.Tag, _, _ = strings.Cut(s.Bindings(topology.Destination{Queue: "q"})[0].RoutingKey, ".")
		top := s.Topology()
		var names []string
		for _, q := range top.Queues {
			names = append(names, q.Name)
		}
		for _, e := range top.Exchanges {
			names = append(names, e.Name)
		}
		for _, object := range names {
			l, ok := naming.LayoutOf("x", object)
			if shared := object == "x.deliver" || object == "x.parked"; ok == shared || ok && l != want {
				t.Errorf("%s: LayoutOf(%s) = %+v, %t, want %+v", name, object, l, ok, want)
			}
		}
	}
	for _, other := range []string{"x", "x.", "x.bucketful", "y.bucket.1s", "x.route.a:b", "x.canary.a", "orders", ""} {
		if l, ok := naming.LayoutOf("x", other); ok {
			t.Errorf("LayoutOf(%q) = %+v, true, want false", other, l)
		}
	}
}
