package operations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/cli"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// clinic is a virtual host with a small layout that the doctor examines.
type clinic struct {
	*suite.Vhost
	cfg doctor.Config
	src snapshot.Source
}

func newClinic(t *testing.T, v *suite.Vhost, radices []int, dests ...topology.Destination) *clinic {
	t.Helper()
	name := "doctor's test " + v.Name // distinguishes this test's connections from those of other tests on the same broker
	c := &clinic{Vhost: v, cfg: doctor.Config{Want: smallLayout(t, radices, 100*time.Millisecond, dests...), Vhost: v.Name}}
	c.src = snapshot.Source{
		Management: v.Mgmt, ConnectionName: name,
		Dial: func(context.Context) (*amqp.Connection, error) {
			return amqp.DialConfig(v.URL, amqp.Config{Properties: amqp.Table{"connection_name": name}})
		},
	}
	return c
}

// smallLayout returns a layout with few queues and the given destinations.
func smallLayout(t *testing.T, radices []int, resolution time.Duration, dests ...topology.Destination) topology.Topology {
	t.Helper()
	b, err := dlx.NewBucket(dlx.BucketConfig{Radices: radices, Resolution: resolution})
	if err != nil {
		t.Fatal(err)
	}
	top := b.Topology()
	top.Destinations = dests
	for _, d := range dests {
		top.Bindings = append(top.Bindings, b.Bindings(d)...)
	}
	return top.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum)
}

func (c *clinic) examine(t *testing.T) doctor.Report {
	t.Helper()
	snap, err := snapshot.Take(t.Context(), c.cfg, c.src)
	if err != nil {
		t.Fatal(err)
	}
	return doctor.Diagnose(c.cfg, snap)
}

// until repeats the examination until wanted accepts the report, because the management API's counts are up to 5 s old.
func (c *clinic) until(t *testing.T, what string, wanted func(doctor.Report) bool) doctor.Report {
	t.Helper()
	var r doctor.Report
	deadline := time.Now().Add(90 * time.Second)
	for {
		r = c.examine(t)
		if wanted(r) {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatalf("condition not met in time: %s; the last report:\n%s", what, render(r))
		}
	}
}

func render(r doctor.Report) string {
	var b strings.Builder
	_ = r.Render(&b, report.Style{Width: 140}) // a strings.Builder never fails
	return b.String()
}

// find returns the finding with the given id about the object, or about any object if it is empty.
func find(r doctor.Report, id, object string) (doctor.Finding, bool) {
	i := slices.IndexFunc(r.Findings, func(f doctor.Finding) bool {
		return f.ID == id && (object == "" || slices.Contains(f.Objects, object))
	})
	if i < 0 {
		return doctor.Finding{}, false
	}
	return r.Findings[i], true
}

func (c *clinic) clean(t *testing.T, what string) {
	t.Helper()
	c.until(t, what+" is clean", doctor.Report.Clean)
}

// fix runs the command that a finding suggests.
func (c *clinic) fix(t *testing.T, f doctor.Finding) {
	t.Helper()
	command, _, _ := strings.Cut(f.Fix, "   #")
	for part := range strings.SplitSeq(command, " && ") {
		words := suite.ShellWords(part)
		if words[0] != "rabbitmqctl" {
			t.Fatalf(`%s: got the command %q, want one that runs rabbitmqctl`, f.ID, f.Fix)
		}
		if out, err := c.Broker.Ctl(t.Context(), words[1:]...); err != nil {
			t.Fatalf("%s: %s: %v\n%s", f.ID, part, err, out)
		}
	}
}

func (c *clinic) redeclare(t *testing.T, name string, args amqp.Table) {
	t.Helper()
	ch := c.Channel(t)
	if _, err := ch.QueueDelete(name, false, false, false); err != nil {
		t.Fatal(err)
	}
	if args == nil {
		return
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
}

func (c *clinic) publish(t *testing.T, exchange, key string, n int, headers amqp.Table) {
	t.Helper()
	ch := c.Channel(t)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for range n {
		confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), exchange, key, false, false, amqp.Publishing{
			Headers: headers, DeliveryMode: amqp.Persistent,
		})
		if err != nil || !confirm.Wait() {
			t.Fatalf("publishing: got error %v, want nil and a confirm", err)
		}
	}
}

func (c *clinic) policy(t *testing.T, operator bool, name, pattern, applyTo string, definition map[string]any) {
	t.Helper()
	kind := "policies"
	if operator {
		kind = "operator-policies"
	}
	_, err := c.Mgmt.Call(t.Context(), http.MethodPut, c.Mgmt.InVhost(kind, name), map[string]any{
		"pattern": pattern, "apply-to": applyTo, "definition": definition,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

// Queues and exchanges of the layout with the radices 3, 3, 3 and 2, each with the change that spoil makes to it.
const (
	qShort    = "delay.bucket.r3x3x3x2.100ms"   // a policy lowers its TTL
	qExpires  = "delay.bucket.r3x3x3x2.200ms"   // an operator policy expires it
	qOverflow = "delay.bucket.r3x3x3x2.300ms"   // a policy turns at-least-once off
	qKey      = "delay.bucket.r3x3x3x2.600ms"   // a policy rewrites the routing key
	qOnce     = "delay.bucket.r3x3x3x2.900ms"   // declared without at-least-once
	qOther    = "delay.bucket.r3x3x3x2.1s800ms" // declared with another TTL
	qGone     = "delay.bucket.r3x3x3x2.2s700ms" // deleted
	entry     = qShort                          // the exchange of that name: a policy sets an alternate exchange
	level0    = "delay.bucket.r3x3x3x2.level-0" // deleted
	level1    = "delay.bucket.r3x3x3x2.level-1" // declared without an alternate exchange
	oldFull   = "delay.bucket.r2-1h.1h"
)

var stray = topology.Binding{Exchange: "delay.deliver", Queue: "a spy", RoutingKey: "#.o/x"}

var clinicRadices = []int{3, 3, 3, 2}

func clinicDestinations() []topology.Destination {
	return []topology.Destination{
		{Queue: "orders.expire"},
		{Name: "nowhere", Exchange: "nowhere", RoutingKey: "a.b"},
	}
}

// spoil makes every change to a virtual host that the doctor can find on a single node.
func (c *clinic) spoil(t *testing.T) {
	t.Helper()
	ch := c.Channel(t)
	c.policy(t, false, "short", "100ms$", "queues", map[string]any{"message-ttl": 10})
	c.policy(t, true, "fleeting", `^delay\.bucket.*\.200ms$`, "queues", map[string]any{"expires": 3_600_000})
	c.policy(t, false, "dropping", `x2\.300ms$`, "all", map[string]any{"overflow": "drop-head", "max-length": 10})
	c.policy(t, false, "forgetting", `e\.dead$`, "queues", map[string]any{"message-ttl": 3_600_000})
	c.policy(t, false, "rewriting", `600ms$`, "queues", map[string]any{"dead-letter-routing-key": "k"})
	c.policy(t, false, "swallowing", "^delay.bucket.r3x3x3x2.100ms$", "exchanges", map[string]any{"alternate-exchange": "amq.fanout"})

	want, _ := c.cfg.Want.Queue(qOnce)
	args := want.Table()
	delete(args, argument.DeadLetterStrategy)
	c.redeclare(t, qOnce, args)
	want, _ = c.cfg.Want.Queue(qOther)
	args = want.Table()
	args[argument.MessageTTL] = 5
	c.redeclare(t, qOther, args)
	c.redeclare(t, qGone, nil)

	for _, x := range []string{level0, level1, "delay.deliver"} {
		if err := ch.ExchangeDelete(x, false, false); err != nil {
			t.Fatalf("%s: %v", x, err)
		}
	}
	for _, x := range []string{level1, "delay.deliver"} {
		if err := ch.ExchangeDeclare(x, "topic", true, false, false, false, nil); err != nil {
			t.Fatalf("%s: %v", x, err)
		}
	}
	for _, resolution := range []time.Duration{time.Hour, 100 * time.Millisecond} {
		old := smallLayout(t, []int{2}, resolution)
		old.Exchanges = slices.DeleteFunc(old.Exchanges, func(e topology.Exchange) bool { return e.Name == "delay.deliver" }) // changed above
		suite.MustApply(t, c.Vhost.Unmanaged(), old)
	}
	c.publish(t, "", oldFull, 4, nil)

	c.publish(t, "delay.parked", "r3.1.elsewhere", 2, amqp.Table{"rabbitdelay-destination": "elsewhere"})
	c.publish(t, "", "orders.expire", 3, nil)
	c.publish(t, "", "orders.expire.dead", 2, nil)
	c.publish(t, "", "delay.route.nowhere:a.b", 1, nil)

	// A queue is bound to receive copies of messages. One routing key contains a slash, which must be escaped in a URL.
	if _, err := ch.QueueDeclare("a spy", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("a spy", "#.o/x", "delay.deliver", false, nil); err != nil {
		t.Fatal(err)
	}

	// The layout is bound to another application's queue.
	if _, err := ch.QueueDeclare("plain", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 3}); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("plain", "r3x3x3x2.*.*.*.*.plain", "delay.deliver", false, nil); err != nil {
		t.Fatal(err)
	}
	tight := map[string]any{"max-length": 100, "expires": 3_600_000}
	if c.hasConsumerTimeouts() {
		tight["consumer-timeout"] = 5000
	}
	c.policy(t, false, "tight", "^plain$", "queues", tight)
}

// hasConsumerTimeouts reports whether a policy can set a consumer timeout, which RabbitMQ supports since 3.12.
func (c *clinic) hasConsumerTimeouts() bool {
	var major, minor int
	_, err := fmt.Sscanf(c.Broker.Line(), "%d.%d", &major, &minor)
	return err == nil && (major > 3 || minor >= 12)
}

// expected returns the findings that the doctor must report for the clinic's defects, with one object for each.
func (c *clinic) expected() map[string]string {
	e := map[string]string{
		"policy-message-ttl":                    qShort,
		"policy-message-ttl dead":               "orders.expire.dead",
		"stray-binding":                         stray.String(),
		"policy-expires":                        qExpires,
		"policy-max-length":                     qOverflow,
		"policy-dead-letter-routing-key":        qKey,
		"policy-alternate-exchange":             entry,
		"dead-letter-at-most-once " + qOverflow: qOverflow,
		"dead-letter-at-most-once " + qOnce:     qOnce,
		"queue-differs":                         qOther,
		"queue-missing":                         qGone,
		"exchange-missing":                      level0,
		"alternate-exchange " + level1:          level1,
		"alternate-exchange delay.deliver":      "delay.deliver",
		"binding-missing":                       "",
		"leftover-unbound":                      oldFull,
		"dead-letters":                          "orders.expire.dead",
		"parked-messages":                       "delay.parked",
		"route-stuck":                           "delay.route.nowhere:a.b",
		"destination-unconsumed":                "orders.expire",
		"destination-delivery-limit":            "plain",
		"destination-drops":                     "plain",
		"plugin-missing":                        "",
		"clock-difference":                      "",
	}
	if c.hasConsumerTimeouts() {
		e["destination-consumer-timeout"] = "plain"
	}
	return e
}

func hasAll(r doctor.Report, expected map[string]string) (missing []string) {
	for id, object := range expected {
		id, _, _ = strings.Cut(id, " ")
		if _, ok := find(r, id, object); !ok {
			missing = append(missing, id+" "+object)
		}
	}
	return missing
}

func TestDoctorFindsEverything(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := newClinic(t, v, clinicRadices, clinicDestinations()...)
		if err := c.Channel(t).ExchangeDeclare("nowhere", "topic", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if r := c.examine(t); len(r.Findings) != 1 || r.Findings[0].ID != "topology-missing" {
			t.Errorf("before anything is applied: got\n%s\nwant only the finding topology-missing", render(r))
		}
		suite.MustApply(t, v.Unmanaged(), c.cfg.Want)
		c.clean(t, "a layout that was just applied")

		c.spoil(t)
		c.cfg.Plugin = doctor.PluginRequired
		c.src.Now = func() time.Time { return time.Now().Add(-5 * time.Second) }
		c.src.Peek = 10
		var missing []string
		r := c.until(t, "the report contains all expected findings", func(r doctor.Report) bool {
			missing = hasAll(r, c.expected())
			return len(missing) == 0
		})
		t.Logf("\n%s", render(r))
		ids := map[string]bool{}
		for id := range c.expected() {
			id, _, _ = strings.Cut(id, " ")
			ids[id] = true
		}
		for _, f := range r.Findings {
			if !ids[f.ID] {
				t.Errorf("got the finding %+v, want only expected findings", f)
			}
			if f.What == "" || f.Why == "" || f.Fix == "" {
				t.Errorf("got the finding %+v, want What, Why and Fix to be set", f)
			}
		}
		if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.HasSuffix(n, "rabbitdelay destroy --layout delay.bucket.r2") }) {
			t.Errorf("got the notes %q, want the command that deletes the layout", r.Notes)
		}
		if !r.Complete() && !strings.HasPrefix(c.Broker.Version(), "3.10.") {
			t.Errorf("got the unchecked areas %v, want none", r.Unchecked)
		}
		if r.Parked == nil || *r.Parked != 2 || len(r.Clocks) != 1 || r.Clocks[0].Low > 5*time.Second || r.Clocks[0].High < 5*time.Second-10*time.Millisecond {
			t.Errorf("got Parked = %v and Clocks = %+v, want 2 and one clock that is 5s ahead", r.Parked, r.Clocks)
		}
		if f, _ := find(r, "parked-messages", ""); strings.Contains(f.Why, "elsewhere") != (c.Broker.Line() != "4.0") {
			t.Errorf("the finding about parked messages: got Why = %q, want it to name \"elsewhere\" except on RabbitMQ 4.0", f.Why)
		}
		if c.Broker.Source() == broker.Environment {
			return
		}
		f, _ := find(r, "stray-binding", "")
		address := strings.TrimPrefix(strings.Split(f.Fix, "'")[1], c.Mgmt.Endpoint())
		if _, err := c.Mgmt.Call(t.Context(), http.MethodDelete, address, nil, nil); err != nil {
			t.Errorf("running the fix %q: %v", f.Fix, err)
		}
		fixed := map[string]string{
			"stray-binding":              stray.String(),
			"policy-message-ttl":         qShort,
			"policy-message-ttl dead":    "orders.expire.dead",
			"policy-expires":             qExpires,
			"destination-delivery-limit": "plain",
		}
		for id, object := range fixed {
			id, _, _ = strings.Cut(id, " ")
			if f, _ := find(r, id, object); strings.Contains(f.Fix, "rabbitmqctl") {
				c.fix(t, f)
			}
		}
		c.until(t, "the fixed findings have disappeared", func(r doctor.Report) bool { return len(hasAll(r, fixed)) == len(fixed) })
	})
}

// Without the management API, the doctor reports what it finds over AMQP and what it cannot check. Areas that it cannot
// check cause no findings.
func TestDoctorOverAMQP(t *testing.T) {
	t.Parallel()
	suite.OnVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := newClinic(t, v, clinicRadices, clinicDestinations()...)
		if err := c.Channel(t).ExchangeDeclare("nowhere", "topic", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		suite.MustApply(t, v.Unmanaged(), c.cfg.Want)
		c.src.Management = nil
		if r := c.examine(t); !r.Clean() || r.Complete() || !strings.Contains(fmt.Sprint(r.Unchecked), "without the management API") || len(r.Clocks) != 1 {
			t.Errorf("before anything is broken: got\n%s\nwant a clean but incomplete report that is unchecked \"without the management API\", and 1 clock", render(r))
		}
		c.spoil(t)
		c.cfg.Plugin = doctor.PluginRequired
		c.src.ProbePlugin = func(context.Context) (bool, error) { return false, nil }
		c.src.Now = func() time.Time { return time.Now().Add(5 * time.Second) }
		expected := c.expected()
		maps.DeleteFunc(expected, func(id, object string) bool {
			return strings.HasPrefix(id, "policy-") || strings.HasPrefix(id, "leftover-") || object == qOverflow || object == "plain" ||
				id == "binding-missing" || id == "route-stuck" || id == "stray-binding"
		})
		r := c.examine(t)
		if missing := hasAll(r, expected); len(missing) > 0 {
			t.Errorf("findings that are missing: got %v\n%s\nwant none", missing, render(r))
		}
		if len(r.Clocks) != 1 || r.Clocks[0].High > -4*time.Second {
			t.Errorf("got the clocks %+v, want one with High <= %v", r.Clocks, -4*time.Second)
		}
		for _, note := range []string{"could not be verified", "policies", "nodes are unknown", "arguments of 1 destination queue"} {
			if !strings.Contains(fmt.Sprint(r.Unchecked), note) {
				t.Errorf("got\n%s, want an unchecked area containing %q", render(r), note)
			}
		}
	})
}

// inventory returns a text with all objects in a virtual host, including message counts.
func (c *clinic) inventory(t *testing.T) string {
	t.Helper()
	found, err := c.Mgmt.Inspect(t.Context(), topology.Topology{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for name, e := range found.Exchanges {
		lines = append(lines, fmt.Sprint("exchange ", name, " ", e.Arguments))
	}
	for name, q := range found.Queues {
		lines = append(lines, fmt.Sprint("queue ", name, " ", q.Messages, " ", q.Arguments))
	}
	for _, b := range found.Bindings {
		lines = append(lines, b.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// If the leader of a delay queue has no dead-letter worker, the queue keeps messages that are due, and the doctor
// reports it. Before RabbitMQ 4.2.7 and 4.3.1, two concurrent elections can cause that. The test stops the worker
// instead.
func TestDoctorFindsAQueueThatDoesNotDeadLetter(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := newClinic(t, v, []int{3}, topology.Destination{Queue: "orders.expire"})
		suite.MustApply(t, v.Unmanaged(), c.cfg.Want)
		delay := c.cfg.Want.Queues[slices.IndexFunc(c.cfg.Want.Queues, topology.Queue.IsDelay)].Name
		queue := fmt.Sprintf("rabbit_misc:r(<<%q>>, queue, <<%q>>)", v.Name, delay)
		mustCtl(t, v.Broker, "eval", "[ok] = [supervisor:terminate_child(rabbit_fifo_dlx_sup, P) || "+
			"{_, P, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup), "+
			"element(2, sys:get_state(P)) =:= "+queue+"].")
		c.publish(t, "", delay, 5, nil)
		leaving := func(n int64) {
			suite.Eventually(t, fmt.Sprintf("the queue counts %d messages that are being dead-lettered", n), func() bool {
				q, err := v.Mgmt.Queue(t.Context(), delay)
				return err == nil && q != nil && q.Leaving == n
			})
		}
		leaving(5)
		c.src.Standstill, c.src.Watch = &doctor.StallWatch{}, 10*time.Second
		c.until(t, "the doctor reports a standstill", func(r doctor.Report) bool { // the management API's counts are delayed
			return strings.Contains(render(r), "at least 5 of 5")
		})
		mustCtl(t, v.Broker, "eval", "{ok, _} = supervisor:start_child(rabbit_fifo_dlx_sup, ["+queue+"]).")
		leaving(0)
		c.src.Standstill = &doctor.StallWatch{}
		if r := c.examine(t); strings.Contains(render(r), "delay-standstill") {
			t.Errorf("after the queue delivers again: got\n%s, want no finding delay-standstill", render(r))
		}
	})
}

// The doctor changes nothing on the broker, with any permissions and with either way of reading the broker.
func TestDoctorChangesNothing(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := newClinic(t, v, clinicRadices, clinicDestinations()...)
		want := c.cfg.Want
		some := want
		some.Queues, some.Bindings = want.Queues[:len(want.Queues)/2], nil
		suite.MustApply(t, v.Unmanaged(), some)
		c.publish(t, "", some.Queues[0].Name, 3, nil)
		before := ""
		suite.Eventually(t, "the counts are stable", func() bool {
			now := c.inventory(t)
			settled := now == before && strings.Contains(now, some.Queues[0].Name+" 3 ")
			before = now
			return settled
		})
		for _, management := range []*live.Management{v.Mgmt, nil} {
			c.src.Management = management
			c.examine(t)
			c.examine(t)
		}
		suite.Eventually(t, "the objects and counts are the same as before", func() bool { return c.inventory(t) == before })
		if after := c.inventory(t); after != before {
			t.Errorf("after the doctor ran, the broker has\n%s\nwant\n%s", after, before)
		}
	})
}

// The doctor reports no finding for messages that are passing through a route queue.
func TestDoctorWaitsForRoutes(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := newClinic(t, v, []int{2}, topology.Destination{Name: "ev", Exchange: "amq.fanout", RoutingKey: "a.b"})
		suite.MustApply(t, v.Unmanaged(), c.cfg.Want)
		ch := c.Channel(t)
		if _, err := ch.QueueDeclare("sink", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.QueueBind("sink", "", "amq.fanout", false, nil); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			c.publish(t, "", "delay.route.amq.fanout:a.b", 200, nil)
			if r := c.examine(t); !r.Clean() {
				t.Errorf("got\n%s\nwant a clean report", render(r))
			}
		}
	})
}

// The doctor reports alarms and blocked connections, over AMQP and over the management API.
func TestDoctorSeesAlarms(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"4.3", "3.10"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			b := ownBroker(t, line)
			c := newClinic(t, suite.NewVhost(t, b), []int{2}, topology.Destination{Queue: "orders.expire"})
			suite.MustApply(t, c.Vhost.Unmanaged(), c.cfg.Want)
			mustCtl(t, b, "set_vm_memory_high_watermark", "absolute", "1MB")
			t.Cleanup(func() { mustCtl(t, b, "set_vm_memory_high_watermark", "0.6") })
			publisher := c.Dial(t)
			blocked := publisher.NotifyBlocked(make(chan amqp.Blocking, 1))
			ch, err := publisher.Channel()
			if err != nil {
				t.Fatal(err)
			}
			if err := ch.PublishWithContext(t.Context(), "", "nobody", false, false, amqp.Publishing{}); err != nil {
				t.Fatal(err)
			}
			<-blocked
			c.until(t, "the report contains the alarm and the blocked connection", func(r doctor.Report) bool {
				_, alarm := find(r, "alarm-memory", "")
				_, connections := find(r, "connections-blocked", "")
				return alarm && connections
			})
			c.src.Management = nil
			if r := c.examine(t); len(r.Findings) != 1 || r.Findings[0].ID != "connection-blocked" {
				t.Errorf("over AMQP: got\n%s\nwant only the finding connection-blocked", render(r))
			}
			mustCtl(t, b, "set_vm_memory_high_watermark", "0.6")
			c.src.Management = c.Mgmt
			mustCtl(t, b, "set_disk_free_limit", "9000GB")
			c.until(t, "the report contains the disk alarm", func(r doctor.Report) bool {
				_, alarm := find(r, "alarm-disk", "")
				return alarm
			})
			mustCtl(t, b, "set_disk_free_limit", "50MB")
			c.clean(t, "a broker after its alarms")
		})
	}
}

// RabbitMQ 3.10 supports at-least-once dead-lettering only with a feature flag. The doctor reports if it is disabled.
func TestDoctorSeesMissingFeatureFlag(t *testing.T) {
	b := ownBroker(t, "3.10")
	mustCtl(t, b, "eval", "rabbit_feature_flags:mark_as_enabled_locally(stream_queue, false).")
	t.Cleanup(func() {
		mustCtl(t, b, "eval", "rabbit_feature_flags:mark_as_enabled_locally(stream_queue, true).")
	})
	c := newClinic(t, suite.NewVhost(t, b), []int{2})
	suite.MustApply(t, c.Vhost.Unmanaged(), c.cfg.Want)
	r := c.examine(t)
	f, ok := find(r, "feature-flag-off", "")
	if !ok || len(r.Findings) != 1 {
		t.Fatalf("got\n%s\nwant one finding", render(r))
	}
	t.Logf("%s", f.Fix)
	for part := range strings.SplitSeq(f.Fix, " && ") {
		mustCtl(t, b, suite.ShellWords(part)[1:]...)
	}
	c.clean(t, "a broker with the flag enabled")
}

// ownBroker returns a broker for tests that raise alarms or change feature flags. Other tests do not use it.
func ownBroker(t *testing.T, line string) *broker.Broker {
	t.Helper()
	if versions, err := broker.Versions(t.Context()); err == nil && !slices.Contains(versions, line) {
		t.Skipf("skipped: RabbitMQ %s is not available, only %v", line, versions)
	}
	b := broker.Shared(t, broker.Options{Version: line, Management: true, Config: "# for the doctor"})
	if b.Source() == broker.Environment {
		t.Skip("skipped: the test must not raise alarms on the broker at AMQP_URL")
	}
	return b
}

func mustCtl(t *testing.T, b *broker.Broker, args ...string) {
	t.Helper()
	if out, err := b.Ctl(context.WithoutCancel(t.Context()), args...); err != nil {
		t.Fatalf("rabbitmqctl %v: %v\n%s", args, err, out)
	}
}

// TestDoctorCommand checks the exit codes and the output of rabbitdelay doctor as text and as one line of JSON.
func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		file := filepath.Join(t.TempDir(), "delays.yaml")
		yaml := fmt.Sprintf("broker: {management_url: %q}\ndelay: {bucket: {radices: [3, 3]}}\ndestinations: [{queue: orders.expire}]\n", v.Mgmt.Endpoint())
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		command := func(args ...string) (code int, out string) {
			var stdout, stderr strings.Builder
			code = cli.Run(t.Context(), append(args, "-f", file, "--url", v.URL), strings.NewReader(""), &stdout, &stderr)
			if stderr.String() != "" {
				t.Errorf(`%v: got the standard error %q, want ""`, args, stderr.String())
			}
			return code, stdout.String()
		}
		code, out := command("doctor")
		if code != 1 || !strings.Contains(out, "topology-missing") || !strings.Contains(out, "rabbitdelay apply -f "+file) {
			t.Errorf("before apply: exit %d\n%s\nwant 1, a text with \"topology-missing\" and a text with %q",
				code, out, "rabbitdelay apply -f "+file)
		}
		if code, out := command("apply", "-q"); code != 0 {
			t.Fatalf("apply: exit %d\n%s\nwant 0", code, out)
		}
		code, out = command("doctor", "--json")
		var shown struct {
			Broker    string
			Source    string
			Clocks    []map[string]any
			Findings  []doctor.Finding
			Unchecked []doctor.Unchecked
			Notes     []string
		}
		if err := json.Unmarshal([]byte(out), &shown); err != nil || strings.Count(out, "\n") != 1 {
			t.Fatalf("doctor --json: got %s (error %v), want one line of JSON", out, err)
		}
		if code != 0 {
			t.Errorf("after apply: got exit code %d, want 0: %s", code, out)
		}
		if len(shown.Unchecked) > 0 {
			t.Errorf("the report after apply: got unchecked areas %+v, want none", shown.Unchecked)
		}
		if want := v.Broker.Version(); shown.Broker != want {
			t.Errorf("after apply: the broker is %s, want %s", shown.Broker, want)
		}
		if shown.Findings == nil {
			t.Errorf("after apply: findings are null, want []: %s", out)
		}
		if len(shown.Findings) > 0 {
			t.Errorf("the report after apply: got findings %+v, want none", shown.Findings)
		}
		if shown.Notes == nil {
			t.Errorf("after apply: notes are null, want []: %s", out)
		}
		if shown.Source != "management API" {
			t.Errorf("after apply: the source is %q, want management API", shown.Source)
		}
		if len(shown.Clocks) != 1 {
			t.Fatalf("after apply: %d clocks, want 1: %s", len(shown.Clocks), out)
		}
		for _, key := range []string{"method", "resolution_ms"} {
			if shown.Clocks[0][key] == nil {
				t.Errorf("the report after apply: got the clock %v, want it with %s", shown.Clocks[0], key)
			}
		}
		code, out = command("doctor", "--strategy", "plugin")
		if code != 1 || !strings.Contains(out, "plugin-missing") {
			t.Errorf("with the plugin strategy: exit %d\n%s\nwant 1 and a text with \"plugin-missing\"", code, out)
		}
	})
}
