package integration_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// objects are the names of queues and exchanges of a virtual host, the broker's
// own left out.
func (v *vhost) objects(t *testing.T) []string {
	t.Helper()
	current, err := v.mgmt.Inspect(t.Context(), topology.Topology{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range current.Queues {
		names = append(names, "queue "+name)
	}
	for name := range current.Exchanges {
		if name != "" && !strings.HasPrefix(name, "amq.") {
			names = append(names, "exchange "+name)
		}
	}
	slices.Sort(names)
	return names
}

// shared are the objects that stay when a layout goes and another is there.
var sharedObjects = []string{"exchange delay.deliver", "exchange delay.parked", "queue delay.parked"}

// A layout that messages have left goes, and nothing of what others use.
func TestDestroyBesideALiveLayout(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		for _, qt := range []topology.QueueType{topology.Classic, topology.Quorum} {
			v := newVhost(t, v.broker)
			old := layoutOf(t, dlx.BucketConfig{Radices: []int{3, 3}, QueueType: qt}, toQueue)
			current := layoutOf(t, dlx.BucketConfig{Radices: []int{2, 2}, QueueType: qt}, toQueue)
			mustApply(t, v.unmanaged(), current)
			before := v.objects(t)
			mustApply(t, v.unmanaged(), old)
			report, err := v.managed().Destroy(t.Context(), old, topology.RemovalOptions{Destinations: true})
			if err != nil {
				t.Fatalf("%s: %s, %v", qt, report, err)
			}
			if after := v.objects(t); !slices.Equal(before, after) {
				t.Errorf("%s: before the layout came\n%v\nafter it went\n%v", qt, before, after)
			}
			plan, err := v.managed().Plan(t.Context(), current)
			if err != nil || !plan.Empty() {
				t.Errorf("%s: the live layout: %v\n%s", qt, err, plan)
			}
			bucket, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}, QueueType: qt})
			if err != nil {
				t.Fatal(err)
			}
			c := openClient(t, amqpx.Config{URL: v.url, Strategy: bucket, QueueType: qt, Declare: amqpx.DeclareNothing})
			send(t, c, amqpx.Message{ID: "1", Queue: toQueue.Queue, Delay: 300 * time.Millisecond})
			(&shop{vhost: v}).arrives(t, toQueue.Queue, "1")

			// When the last layout goes, what they shared goes too.
			if report, err = v.managed().Destroy(t.Context(), current, topology.RemovalOptions{}); err != nil {
				t.Fatalf("%s: the last: %s, %v", qt, report, err)
			}
			if left, want := v.objects(t), []string{"queue orders.expire", "queue orders.expire.dead"}; !slices.Equal(left, want) {
				t.Errorf("%s: left: %v, want %v", qt, left, want)
			}
			again, err := v.managed().Destroy(t.Context(), current, topology.RemovalOptions{})
			if err != nil || again.Count(live.StateDeleted) != 0 {
				t.Errorf("%s: of nothing: %s, %v", qt, again, err)
			}
		}
	})
}

func layoutOf(t *testing.T, c dlx.BucketConfig, dests ...topology.Destination) topology.Topology {
	t.Helper()
	b, err := dlx.NewBucket(c)
	if err != nil {
		t.Fatal(err)
	}
	top := b.Topology()
	top.Destinations = dests
	for _, d := range dests {
		top.Bindings = append(top.Bindings, b.Bindings(d)...)
	}
	return top.WithDestinationQueues(topology.DefaultPrefix, c.QueueType)
}

// Messages stop it before anything is touched, those as well that only the
// management API counts.
func TestDestroyRefusesWhileMessagesWait(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		const waiting, under = "delay.bucket.r2-1h.1h", "delay.bucket.r2.100ms"
		hour := layoutOf(t, dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour, QueueType: topology.Quorum}, toQueue)
		mustApply(t, v.unmanaged(), hour)
		publish(t, v, waiting, 3)
		publish(t, v, "orders.expire", 2) // which stays, with what is in it
		before := v.objects(t)
		report, err := v.managed().Destroy(t.Context(), hour, topology.RemovalOptions{})
		full, ok := errors.AsType[*topology.NotEmptyError](err)
		if !ok || full.Total != 3 || report.Count(live.StateDeleted) != 0 || !strings.Contains(err.Error(), "3 of them waiting in delay queues ("+waiting+" 3)") {
			t.Errorf("got %s, %v", report, err)
		}
		plan, err := v.managed().Plan(t.Context(), hour)
		if err != nil || !plan.Empty() || !slices.Equal(before, v.objects(t)) {
			t.Errorf("a destroy that refused changed something: %v\n%s", err, plan)
		}
		n := int64(2)
		if _, err := v.managed().Destroy(t.Context(), hour, topology.RemovalOptions{Force: true, Messages: &n}); !errors.Is(err, topology.ErrNotEmpty) {
			t.Errorf("with a bound of two: %v", err)
		}
		report, err = v.managed().Destroy(t.Context(), hour, topology.RemovalOptions{Force: true})
		if err != nil || messagesOf(report) != 3 {
			t.Errorf("forced: %s with %d messages, %v", report, messagesOf(report), err)
		}

		// Nothing takes these dead letters, so they are neither ready nor gone.
		short := smallLayout(t, []int{2}, 100*time.Millisecond)
		mustApply(t, v.unmanaged(), short)
		ch := v.channel(t)
		if err := ch.ExchangeDelete("delay.deliver", false, false); err != nil {
			t.Fatal(err)
		}
		publish(t, v, under, 2)
		waitFor(t, "the dead letters to be under way", func() bool {
			q, err := ch.QueueDeclarePassive(under, true, false, false, false, nil)
			return err == nil && q.Messages == 0
		})
		waitFor(t, "them to be counted", func() bool {
			current, err := v.mgmt.Inspect(t.Context(), short)
			return err == nil && current.Queues[under].Messages == 2
		})
		for name, c := range map[string]struct {
			insp live.Inspector
			want error
		}{"the management API": {v.mgmt, topology.ErrNotEmpty}, "AMQP alone": {nil, topology.ErrUnseen}} {
			report, err := live.Broker{Conn: v.conn, Inspector: c.insp}.Destroy(t.Context(), short, topology.RemovalOptions{})
			if !errors.Is(err, c.want) || report.Count(live.StateDeleted) != 0 {
				t.Errorf("%s: %s, %v, want %v", name, report, err, c.want)
			}
		}
	})
}

func messagesOf(r live.Report) int64 {
	var n int64
	for _, x := range r.Results {
		n += x.Messages
	}
	return n
}

// Who sends while the layout is being destroyed keeps it: the way in is put back.
func TestDestroyGivesWayToASender(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		hour := layoutOf(t, dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour, QueueType: topology.Quorum}, toQueue)
		mustApply(t, v.unmanaged(), hour)
		bucket, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c := openClient(t, amqpx.Config{URL: v.url, Strategy: bucket})
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			waitFor(t, "the way in to be closed", func() bool {
				current, err := v.mgmt.Inspect(t.Context(), hour)
				return err == nil && !slices.ContainsFunc(current.Bindings, func(b topology.Binding) bool { return b.Exchange == "delay.bucket.r2-1h.1h" })
			})
			if err := c.Send(t.Context(), amqpx.Message{Queue: toQueue.Queue, Delay: time.Hour}); err != nil {
				t.Error(err)
			}
		})
		report, err := v.managed().Destroy(t.Context(), hour, topology.RemovalOptions{})
		if !errors.Is(err, topology.ErrNotEmpty) || report.Count(live.StateDeleted) != 0 {
			t.Errorf("got %s, %v", report, err)
		}
		wg.Wait()
		if plan, err := v.managed().Plan(t.Context(), hour); err != nil || !plan.Empty() {
			t.Errorf("afterwards: %v\n%s", err, plan)
		}
	})
}

// Destinations go when they are asked for, and not from under a consumer.
func TestDestroyDestinations(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		top := smallLayout(t, []int{2}, 100*time.Millisecond, toQueue)
		mustApply(t, v.unmanaged(), top)
		ch := v.channel(t)
		if _, err := ch.Consume("orders.expire", "somebody", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		o := topology.RemovalOptions{Destinations: true}
		report, err := v.managed().Destroy(t.Context(), top, o)
		if !errors.Is(err, topology.ErrConsumers) || report.Count(live.StateDeleted) != 0 || !strings.Contains(err.Error(), "orders.expire 1") {
			t.Errorf("with a consumer: %s, %v", report, err)
		}
		if err := ch.Cancel("somebody", false); err != nil {
			t.Fatal(err)
		}
		publish(t, v, "orders.expire", 1)
		for _, force := range []bool{false, true} {
			o.Force = force
			if report, err := v.managed().Destroy(t.Context(), top, o); !errors.Is(err, topology.ErrNotEmpty) || report.Count(live.StateDeleted) != 0 {
				t.Errorf("with a message, forced %v: %s, %v", force, report, err)
			}
		}
		n := int64(1)
		o.Messages = &n
		if report, err := v.managed().Destroy(t.Context(), top, o); err != nil || messagesOf(report) != 1 || len(v.objects(t)) != 0 {
			t.Errorf("with the count: %s, %v; left %v", report, err, v.objects(t))
		}
	})
}

// Over AMQP alone nothing goes that others may use, even when forced.
func TestDestroyOverAMQPAlone(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		top := smallLayout(t, []int{2}, 100*time.Millisecond, toQueue)
		mustApply(t, v.unmanaged(), top)
		report, err := v.unmanaged().Destroy(t.Context(), top, topology.RemovalOptions{Force: true})
		if err != nil {
			t.Fatalf("%s, %v", report, err)
		}
		if left, want := v.objects(t), append(slices.Clone(sharedObjects), "queue orders.expire", "queue orders.expire.dead"); !slices.Equal(left, want) {
			t.Errorf("left %v, want %v", left, want)
		}
		if err := v.unmanaged().Wipe(t.Context(), top); err != nil || len(v.objects(t)) != 0 {
			t.Errorf("wiped: %v; left %v", err, v.objects(t))
		}
	})
}

// commandOn runs the command line with a file on a virtual host.
func commandOn(t *testing.T, v *vhost, yaml string) func(args ...string) ran {
	t.Helper()
	return commandWith(t, v, yaml, v.mgmt.Endpoint())
}

// commandWith is commandOn with a management API at another address.
func commandWith(t *testing.T, v *vhost, yaml, management string) func(args ...string) ran {
	t.Helper()
	file := filepath.Join(t.TempDir(), "delays.yaml")
	yaml = fmt.Sprintf("%sbroker: {management_url: %q}\n", yaml, management)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) ran {
		return runCLI(t.Context(), append(args, "-f", file, "--url", v.url)...)
	}
}

// Layouts under delay.previous are counted, and go with the present one.
func TestCLIDestroyCountsPreviousLayouts(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		const destinations = "\ndestinations: [{queue: orders.expire}]\n"
		old := commandOn(t, v, "delay: {bucket: {radices: [2], resolution: 1h}}"+destinations)
		now := commandOn(t, v, "delay: {bucket: {radices: [2]}, previous: [{radices: [2], resolution: 1h}]}"+destinations)
		for _, cmd := range []func(...string) ran{old, now} {
			if r := cmd("apply"); r.code != 0 {
				t.Fatal(r)
			}
		}
		if r := old("send", "--queue", "orders.expire", "--delay", "1h"); r.code != 0 {
			t.Fatal(r)
		}
		refused := now("destroy", "--yes")
		if refused.code != 1 || !strings.Contains(refused.stderr, "delay.bucket.r2-1h.1h 1") {
			t.Error(refused)
		}
		if r := now("plan"); r.code != 0 {
			t.Errorf("after a destroy that refused: %s", r)
		}
		dry := now("destroy", "--dry-run", "--json", "--force")
		would := dry.last(t, "would_delete", "would_keep", "absent", "messages")
		if dry.code != 0 || would["messages"] != 1.0 {
			t.Error(dry)
		}
		r := now("destroy", "--yes", "--json", "--force", "--messages", "1")
		if did := r.last(t, destroyKeys...); r.code != 0 || did["messages_deleted"] != 1.0 || did["deleted"] != would["would_delete"] {
			t.Errorf("%v objects would go: %s", would["would_delete"], r)
		}
		if left, want := v.objects(t), []string{"queue orders.expire", "queue orders.expire.dead"}; !slices.Equal(left, want) {
			t.Errorf("left %v, want %v", left, want)
		}
	})
}

// A layout that no file describes any more goes by its name.
func TestCLIDestroyByName(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		const destinations = "\ndestinations: [{queue: orders.expire}]\n"
		two := commandOn(t, v, "delay: {strategy: ttl, ttl: {delays: [1m, 2m]}}"+destinations)
		one := commandOn(t, v, "delay: {strategy: ttl, ttl: {delays: [1m]}}"+destinations)
		if r := one("apply"); r.code != 0 {
			t.Fatal(r)
		}
		// What says that the layout is complete goes with any part of it.
		want := slices.DeleteFunc(v.objects(t), func(name string) bool { return strings.Contains(name, ".declared.") })
		if r := two("apply"); r.code != 0 {
			t.Fatal(r)
		}
		if r := one("destroy", "--yes", "--layout", "delay.bucket.hex"); r.code != 1 || !strings.Contains(r.stderr, `there is no such layout; on the broker are: delay.ttl`) {
			t.Error(r)
		}
		if r := one("destroy", "--yes", "--layout", "delay.ttl.2m"); r.code != 0 {
			t.Error(r)
		}
		if left := v.objects(t); !slices.Equal(left, want) {
			t.Errorf("left %v, want %v", left, want)
		}
		if r := one("plan"); r.code != 0 {
			t.Errorf("the queue in use: %s", r)
		}
	})
}

// Without a terminal nobody can be asked.
func TestCLIDestroyAsks(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		cmd := commandOn(t, v, "delay: {bucket: {radices: [2]}}\n")
		if r := cmd("apply"); r.code != 0 {
			t.Fatal(r)
		}
		before := v.objects(t)
		for want, args := range map[string][]string{
			"give --yes":               {},
			"give both":                {"--yes", "--messages", "3"},
			"expected 0 or more":       {"--yes", "--force", "--messages", "-1"},
			"both --destinations and":  {"--yes", "--destinations", "--layout", "x"},
			"there is no such layout;": {"--yes", "--layout", "x"},
		} {
			if r := cmd(append([]string{"destroy"}, args...)...); r.code != 1 || !strings.Contains(r.stderr, want) {
				t.Errorf("%v: %s", args, r)
			}
		}
		if r := cmd("destroy", "--dry-run"); r.code != 0 || !strings.Contains(r.stdout, "delete  1 queue, 1 exchange, 1 binding of delay.bucket.r2") {
			t.Error(r)
		}
		if after := v.objects(t); !slices.Equal(before, after) {
			t.Errorf("before %v, after %v", before, after)
		}
		if r := cmd("destroy", "--yes", "--json"); r.code != 0 || r.last(t, destroyKeys...)["kept"] != 0.0 || len(v.objects(t)) != 0 {
			t.Errorf("%s; left %v", r, v.objects(t))
		}
	})
}

var destroyKeys = []string{"deleted", "absent", "kept", "failed", "messages_deleted", "seconds"}
