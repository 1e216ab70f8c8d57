package operations_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/destroy"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/removal"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// sharedObjects lists the objects that are kept when one layout is deleted while another exists.
var sharedObjects = []string{"exchange delay.deliver", "exchange delay.parked", "queue delay.parked"}

// destroy deletes a drained layout, but keeps objects that other layouts use.
func TestDestroyKeepsALayoutInUse(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		for _, qt := range []topology.QueueType{topology.Classic, topology.Quorum} {
			v := suite.NewVhost(t, v.Broker)
			old := layoutOf(t, dlx.BucketConfig{Radices: []int{3, 3}, QueueType: qt}, toQueue)
			current := layoutOf(t, dlx.BucketConfig{Radices: []int{2, 2}, QueueType: qt}, toQueue)
			suite.MustApply(t, v.Unmanaged(), current)
			before := v.Objects(t)
			suite.MustApply(t, v.Unmanaged(), old)
			report, err := destroy.Run(t.Context(), v.Managed(), old, removal.Options{Destinations: true})
			if err != nil {
				t.Fatalf("%s: destroying the layout: %v; report:\n%s", qt, err, report)
			}
			if after := v.Objects(t); !slices.Equal(before, after) {
				t.Errorf("%s: after destroy, the objects are\n%v\nwant\n%v as before the layout was created", qt, after, before)
			}
			plan, err := v.Managed().Plan(t.Context(), current)
			if err != nil || !plan.Empty() {
				t.Errorf("%s: the plan of the live layout: got %v\n%s\nwant no error and an empty plan", qt, err, plan)
			}
			bucket, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}, QueueType: qt})
			if err != nil {
				t.Fatalf("%s queues: %v", qt, err)
			}
			c := suite.OpenClient(t, amqpx.Config{URL: v.URL, Strategy: bucket, QueueType: qt, Declare: amqpx.DeclareNothing})
			suite.Send(t, c, amqpx.Message{ID: "1", Queue: toQueue.Queue, Delay: 300 * time.Millisecond})
			(&shop{Vhost: v}).arrives(t, toQueue.Queue, "1")

			// When the last layout is deleted, the shared objects are deleted too.
			if report, err = destroy.Run(t.Context(), v.Managed(), current, removal.Options{}); err != nil {
				t.Fatalf("%s: destroying the last layout: %v; report:\n%s", qt, err, report)
			}
			if left, want := v.Objects(t), []string{"queue orders.expire", "queue orders.expire.dead"}; !slices.Equal(left, want) {
				t.Errorf("%s: got the remaining objects %v, want %v", qt, left, want)
			}
			again, err := destroy.Run(t.Context(), v.Managed(), current, removal.Options{})
			if err != nil || again.Count(live.StateDeleted) != 0 {
				t.Errorf("%s: destroying a deleted layout: got %s, %v, want no error and Count(live.StateDeleted) = 0", qt, again, err)
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

// If there are messages, destroy refuses before it changes anything, even if only the management API counts the
// messages.
func TestDestroyRefusesWhileMessagesWait(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		const waiting, under = "delay.bucket.r2-1h.1h", "delay.bucket.r2.100ms"
		hour := layoutOf(t, dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour, QueueType: topology.Quorum}, toQueue)
		suite.MustApply(t, v.Unmanaged(), hour)
		suite.Publish(t, v, waiting, 3)
		suite.Publish(t, v, "orders.expire", 2) // the destination queue and its messages are not deleted
		before := v.Objects(t)
		report, err := destroy.Run(t.Context(), v.Managed(), hour, removal.Options{})
		full, ok := errors.AsType[*removal.NotEmptyError](err)
		if !ok || full.Total != 3 || report.Count(live.StateDeleted) != 0 || !strings.Contains(err.Error(), "3 of them waiting in delay queues ("+waiting+" 3)") {
			t.Errorf("got %s, %v, want a *removal.NotEmptyError for 3 messages and nothing deleted", report, err)
		}
		plan, err := v.Managed().Plan(t.Context(), hour)
		if err != nil || !plan.Empty() || !slices.Equal(before, v.Objects(t)) {
			t.Errorf("after a refused destroy: got objects %v and the plan (error %v)\n%s\nwant objects %v and an empty plan", v.Objects(t), err, plan, before)
		}
		n := int64(2)
		if _, err := destroy.Run(t.Context(), v.Managed(), hour, removal.Options{Force: true, Messages: &n}); !errors.Is(err, removal.ErrNotEmpty) {
			t.Errorf("destroying with a limit of two messages: got %v, want removal.ErrNotEmpty", err)
		}
		report, err = destroy.Run(t.Context(), v.Managed(), hour, removal.Options{Force: true})
		if err != nil || messagesOf(report) != 3 {
			t.Errorf("forced destroy: got %s with %d messages deleted, error %v, want no error and 3", report, messagesOf(report), err)
		}

		// No queue accepts these dead letters, so the source queue keeps them, although they are not ready.
		short := smallLayout(t, []int{2}, 100*time.Millisecond)
		suite.MustApply(t, v.Unmanaged(), short)
		ch := v.Channel(t)
		if err := ch.ExchangeDelete("delay.deliver", false, false); err != nil {
			t.Fatal(err)
		}
		suite.Publish(t, v, under, 2)
		suite.Eventually(t, "no message is ready", func() bool {
			q, err := ch.QueueDeclarePassive(under, true, false, false, false, nil)
			return err == nil && q.Messages == 0
		})
		suite.Eventually(t, "the management API counts the dead letters", func() bool {
			current, err := v.Mgmt.Inspect(t.Context(), short)
			return err == nil && current.Queues[under].Messages == 2
		})
		for name, c := range map[string]struct {
			insp live.Inspector
			want error
		}{"the management API": {v.Mgmt, removal.ErrNotEmpty}, "AMQP alone": {nil, removal.ErrUnseen}} {
			report, err := destroy.Run(t.Context(), live.Broker{Conn: v.Conn, Inspector: c.insp}, short, removal.Options{})
			if !errors.Is(err, c.want) || report.Count(live.StateDeleted) != 0 {
				t.Errorf("%s: got %s, %v, want %v", name, report, err, c.want)
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

// If a client sends a message while the layout is being destroyed, destroy restores the bindings that it has deleted,
// and keeps the layout.
func TestDestroyGivesWayToASender(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		hour := layoutOf(t, dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour, QueueType: topology.Quorum}, toQueue)
		suite.MustApply(t, v.Unmanaged(), hour)
		bucket, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL, Strategy: bucket})
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			suite.Eventually(t, "destroy has deleted the bindings of the entry exchange", func() bool {
				current, err := v.Mgmt.Inspect(t.Context(), hour)
				return err == nil && !slices.ContainsFunc(current.Bindings, func(b topology.Binding) bool { return b.Exchange == "delay.bucket.r2-1h.1h" })
			})
			if err := c.Send(t.Context(), amqpx.Message{Queue: toQueue.Queue, Delay: time.Hour}); err != nil {
				t.Error(err)
			}
		})
		report, err := destroy.Run(t.Context(), v.Managed(), hour, removal.Options{})
		if !errors.Is(err, removal.ErrNotEmpty) || report.Count(live.StateDeleted) != 0 {
			t.Errorf("got %s, %v, want removal.ErrNotEmpty and Count(live.StateDeleted) = 0", report, err)
		}
		wg.Wait()
		if plan, err := v.Managed().Plan(t.Context(), hour); err != nil || !plan.Empty() {
			t.Errorf("the plan after destroy: got %v\n%s\nwant no error and an empty plan", err, plan)
		}
	})
}

// destroy deletes destinations only on request, and not while they have a consumer.
func TestDestroyDestinations(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		top := smallLayout(t, []int{2}, 100*time.Millisecond, toQueue)
		suite.MustApply(t, v.Unmanaged(), top)
		ch := v.Channel(t)
		if _, err := ch.Consume("orders.expire", "somebody", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		o := removal.Options{Destinations: true}
		report, err := destroy.Run(t.Context(), v.Managed(), top, o)
		if !errors.Is(err, removal.ErrConsumers) || report.Count(live.StateDeleted) != 0 || !strings.Contains(err.Error(), "orders.expire 1") {
			t.Errorf(`destroying a queue with a consumer: got %s, %v, want removal.ErrConsumers with "orders.expire 1" and Count(live.StateDeleted) = 0`, report, err)
		}
		if err := ch.Cancel("somebody", false); err != nil {
			t.Fatal(err)
		}
		suite.Publish(t, v, "orders.expire", 1)
		for _, force := range []bool{false, true} {
			o.Force = force
			if report, err := destroy.Run(t.Context(), v.Managed(), top, o); !errors.Is(err, removal.ErrNotEmpty) || report.Count(live.StateDeleted) != 0 {
				t.Errorf("destroying a queue with a message, Force = %v: got %s, %v, want removal.ErrNotEmpty and Count(live.StateDeleted) = 0", force, report, err)
			}
		}
		n := int64(1)
		o.Messages = &n
		if report, err := destroy.Run(t.Context(), v.Managed(), top, o); err != nil || messagesOf(report) != 1 || len(v.Objects(t)) != 0 {
			t.Errorf("destroy with Messages set: got %s, %v; left %v, want one message deleted and nothing left", report, err, v.Objects(t))
		}
	})
}

// With AMQP alone, destroy deletes nothing that other programs may use, even with --force.
func TestDestroyOverAMQPAlone(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		top := smallLayout(t, []int{2}, 100*time.Millisecond, toQueue)
		suite.MustApply(t, v.Unmanaged(), top)
		report, err := destroy.Run(t.Context(), v.Unmanaged(), top, removal.Options{Force: true})
		if err != nil {
			t.Fatalf("destroying the layout: %v; report:\n%s", err, report)
		}
		if left, want := v.Objects(t), append(slices.Clone(sharedObjects), "queue orders.expire", "queue orders.expire.dead"); !slices.Equal(left, want) {
			t.Errorf("the remaining objects: got %v, want %v", left, want)
		}
		if err := v.Unmanaged().DeleteAll(t.Context(), top); err != nil || len(v.Objects(t)) != 0 {
			t.Errorf("DeleteAll: got error %v and the objects %v, want no error and no objects", err, v.Objects(t))
		}
	})
}

// destroy counts the messages of the layouts under delay.previous, and deletes these layouts with the current one.
func TestCLIDestroyCountsPreviousLayouts(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		const destinations = "\ndestinations: [{queue: orders.expire}]\n"
		old := suite.CommandOn(t, v, "delay: {bucket: {radices: [2], resolution: 1h}}"+destinations)
		now := suite.CommandOn(t, v, "delay: {bucket: {radices: [2]}, previous: [{radices: [2], resolution: 1h}]}"+destinations)
		for _, cmd := range []func(...string) suite.Ran{old, now} {
			if r := cmd("apply"); r.Code != 0 {
				t.Fatalf("apply: got %v, want exit code 0", r)
			}
		}
		if r := old("send", "--queue", "orders.expire", "--delay", "1h"); r.Code != 0 {
			t.Fatalf("send --queue orders.expire --delay 1h: got %v, want exit code 0", r)
		}
		refused := now("destroy", "--yes")
		if refused.Code != 1 || !strings.Contains(refused.Stderr, "delay.bucket.r2-1h.1h 1") {
			t.Errorf(`destroy --yes: got %v, want exit code 1 and "delay.bucket.r2-1h.1h 1" in the errors`, refused)
		}
		if r := now("plan"); r.Code != 0 {
			t.Errorf("plan after a refused destroy: got %s, want exit code 0", r)
		}
		dry := now("destroy", "--dry-run", "--json", "--force")
		would := dry.Last(t, "would_delete", "would_keep", "absent", "messages")
		if dry.Code != 0 || would["messages"] != 1.0 {
			t.Errorf("destroy --dry-run: got %v, want exit code 0 and messages = 1", dry)
		}
		r := now("destroy", "--yes", "--json", "--force", "--messages", "1")
		if did := r.Last(t, destroyKeys...); r.Code != 0 || did["messages_deleted"] != 1.0 || did["deleted"] != would["would_delete"] {
			t.Errorf(`destroy after a dry run that listed %v objects: got %s, want exit code 0, "messages_deleted": 1 and "deleted": %v`,
				would["would_delete"], r, would["would_delete"])
		}
		if left, want := v.Objects(t), []string{"queue orders.expire", "queue orders.expire.dead"}; !slices.Equal(left, want) {
			t.Errorf("the remaining objects: got %v, want %v", left, want)
		}
	})
}

// A layout that is not in the settings file can be deleted by name.
func TestCLIDestroyByName(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		const destinations = "\ndestinations: [{queue: orders.expire}]\n"
		two := suite.CommandOn(t, v, "delay: {strategy: ttl, ttl: {delays: [1m, 2m]}}"+destinations)
		one := suite.CommandOn(t, v, "delay: {strategy: ttl, ttl: {delays: [1m]}}"+destinations)
		if r := one("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		// The marker of a complete layout is deleted with any part of the layout.
		want := slices.DeleteFunc(v.Objects(t), func(name string) bool { return strings.Contains(name, ".declared.") })
		if r := two("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		r := one("destroy", "--yes", "--layout", "delay.bucket.hex")
		if r.Code != 1 {
			t.Errorf("destroy of a layout that does not exist: exit code %d, want 1\n%s", r.Code, r)
		}
		if want := "it has: delay.ttl"; !strings.Contains(r.Stderr, want) {
			t.Errorf("destroy of a layout that does not exist: got %s, want Stderr containing %q", r, want)
		}
		if r := one("destroy", "--yes", "--layout", "delay.ttl.2m"); r.Code != 0 {
			t.Errorf("destroy --yes --layout delay.ttl.2m: got %v, want exit code 0", r)
		}
		if left := v.Objects(t); !slices.Equal(left, want) {
			t.Errorf("the remaining objects: got %v, want %v", left, want)
		}
		if r := one("plan"); r.Code != 0 {
			t.Errorf("plan after the unused queue was deleted: got %s, want exit code 0", r)
		}
	})
}

// Without a terminal, destroy cannot ask for confirmation and requires --yes.
func TestCLIDestroyAsks(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		cmd := suite.CommandOn(t, v, "delay: {bucket: {radices: [2]}}\n")
		if r := cmd("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		before := v.Objects(t)
		for want, args := range map[string][]string{
			"give --yes":         {},
			"add --force":        {"--yes", "--messages", "3"},
			"expected 0 or more": {"--yes", "--force", "--messages", "-1"},
			"--destinations and --layout cannot be combined": {"--yes", "--destinations", "--layout", "x"},
			"the broker has no layout":                       {"--yes", "--layout", "x"},
		} {
			if r := cmd(append([]string{"destroy"}, args...)...); r.Code != 1 || !strings.Contains(r.Stderr, want) {
				t.Errorf("%v: got %s, want exit code 1 and Stderr with %q", args, r, want)
			}
		}
		if r := cmd("destroy", "--dry-run"); r.Code != 0 || !strings.Contains(r.Stdout, "delete  1 queue, 1 exchange, 1 binding of delay.bucket.r2") {
			t.Errorf(`destroy --dry-run: got %v, want exit code 0 and "delete  1 queue, 1 exchange, 1 binding of delay.bucket.r2" in the output`, r)
		}
		if after := v.Objects(t); !slices.Equal(before, after) {
			t.Errorf("after refused commands, the objects are %v, want %v as before", after, before)
		}
		if r := cmd("destroy", "--yes", "--json"); r.Code != 0 || r.Last(t, destroyKeys...)["kept"] != 0.0 || len(v.Objects(t)) != 0 {
			t.Errorf("destroy --yes: got %s and the objects %v, want exit code 0 and no objects", r, v.Objects(t))
		}
	})
}

var destroyKeys = []string{"deleted", "absent", "kept", "failed", "messages_deleted", "seconds"}
