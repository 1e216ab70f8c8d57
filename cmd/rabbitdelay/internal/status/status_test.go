package status

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// night returns data as Take reads it from a broker with many problems.
func night(t *testing.T) seen {
	t.Helper()
	now, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{3, 3}, Resolution: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	before, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}, Resolution: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	dests := []topology.Destination{{Queue: "orders"}, {Exchange: "events", RoutingKey: "paid"}}
	want := now.Topology()
	want.Destinations = dests
	want = want.WithDestinationQueues("delay", topology.Quorum)
	live := plan.State{
		Source: "management API", BindingsKnown: true,
		Exchanges: map[string]plan.Exchange{"delay.plugin": {HeldKnown: true, Held: 7}},
		Queues:    map[string]plan.Queue{"invoices": {ArgumentsKnown: true, Consumers: 2}},
		Bindings:  []topology.Binding{{Exchange: "delay.deliver", Queue: "invoices", RoutingKey: "clock.*.*.*.*.*.*.invoices"}},
	}
	native, err := dlx.NewNative(dlx.NativeConfig{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range slices.Concat(want.Queues, before.Topology().Queues, native.Topology().Queues) {
		live.Queues[q.Name] = plan.Queue{ArgumentsKnown: true, Type: q.Type, Durable: true, Arguments: q.Table()}
	}
	snap := doctor.Snapshot{Version: "4.3.0", Live: live}
	for queue, c := range map[string]struct{ Ready, Leaving, Unacked int64 }{
		"delay.bucket.r3x3-1s.2s": {Ready: 5, Leaving: 1}, "delay.bucket.r3x3-1s.6s": {Ready: 2}, "delay.bucket.r2x2-1m.2m": {Ready: 1},
		"delay.native.1": {Ready: 4}, "delay.native.2": {Ready: 5, Leaving: 1},
		"orders": {Ready: 3, Unacked: 4}, "orders.dead": {Ready: 6}, "delay.parked": {Ready: 2}, "delay.route.events:paid": {Ready: 1},
	} {
		q, ok := live.Queues[queue]
		if !ok {
			t.Fatalf("queue %s is in none of the layouts", queue)
		}
		q.Messages, q.Leaving, q.Unacked = c.Ready+c.Leaving+c.Unacked, c.Leaving, c.Unacked
		live.Queues[queue] = q
	}
	dead := func(id, reason, text string, died int64) inspect.DeadLetter {
		return inspect.ReadDeadLetter(amqp.Delivery{MessageId: id, Timestamp: time.Unix(died, 0), Headers: amqp.Table{
			amqpx.HeaderReason: reason, amqpx.HeaderQueue: "orders", amqpx.HeaderError: text,
		}}, "orders.dead", "delay")
	}
	snap.Clients = []doctor.Connection{{Name: "shop publish"}, {Name: "relay", Blocked: true}, {Name: "shop publish"}}
	return seen{
		at: time.Unix(1000, 0), cfg: doctor.Config{Want: want, Prefix: "delay", Vhost: "/"}, snap: &snap,
		looks: map[string]inspect.Peeked{"orders.dead": {Messages: []inspect.DeadLetter{
			dead("1", "rejected", "card expired", 100), dead("2", "attempts", "timeout", 90), dead("3", "rejected", "card stolen", 200),
		}, More: 3}},
	}
}

// counted returns a count from the management API.
func counted(ready, leaving, unacked int64) Count {
	return Count{Ready: ready, Leaving: &leaving, Unacked: &unacked}
}

func TestStatus(t *testing.T) {
	s := night(t).status()
	expect := func(what string, got, want any) {
		t.Helper()
		g, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		w, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(g, w) {
			t.Errorf("%s: got\n%s\nwant\n%s", what, g, w)
		}
	}
	sec := func(n int) Span { return Span(time.Duration(n) * time.Second) }
	expect("layouts", s.Layouts, []Layout{
		{Name: "delay.bucket.r3x3-1s", Queues: 4, Waiting: counted(7, 1, 0), Delays: []Delay{
			{Queue: "delay.bucket.r3x3-1s.2s", TTL: sec(2), Latest: sec(3), Waiting: counted(5, 1, 0)},
			{Queue: "delay.bucket.r3x3-1s.6s", TTL: sec(6), Latest: sec(9), Waiting: counted(2, 0, 0)},
		}},
		{Name: "delay.bucket.r2x2-1m", Earlier: true, Queues: 2, Waiting: counted(1, 0, 0), Delays: []Delay{
			{Queue: "delay.bucket.r2x2-1m.2m", TTL: sec(120), Latest: sec(240), Waiting: counted(1, 0, 0)},
		}},
		{Name: "delay.native", Earlier: true, Queues: 2, Waiting: counted(9, 1, 0), Delays: []Delay{}},
		{Name: "delay.plugin", Earlier: true, Waiting: counted(7, 0, 0), Delays: []Delay{}},
	})
	expect("due soon", s.DueSoon[:2], []Due{{Within: sec(60), OnBroker: new(int64(8))}, {Within: sec(600), OnBroker: new(int64(9))}})
	oldest := time.Unix(90, 0)
	expect("destinations", s.Destinations, []Destination{
		{Name: "events:paid", Queue: "delay.route.events:paid", Exchange: true, Exists: true, Waiting: counted(1, 0, 0), Consumers: new(int64)},
		{Name: "invoices", Queue: "invoices", Exists: true, Waiting: counted(0, 0, 0), Consumers: new(int64(2))},
		{Name: "orders", Queue: "orders", Exists: true, Waiting: counted(3, 0, 4), Consumers: new(int64), Dead: &DeadLetters{
			Queue: "orders.dead", Messages: 6, Held: new(int64), Sampled: 3, Oldest: &oldest, Groups: []Group{
				{Destination: "orders", Reason: "rejected", Messages: 2, Error: "card stolen"},
				{Destination: "orders", Reason: "attempts", Messages: 1, Error: "timeout"},
			},
		}},
	})
	if d := s.Destinations; d[0].Unconsumed() || d[1].Unconsumed() || !d[2].Unconsumed() {
		t.Errorf("Unconsumed() of the 3 destinations: got %v, %v and %v, want true only for the last, orders", d[0].Unconsumed(), d[1].Unconsumed(), d[2].Unconsumed())
	}
	expect("parked", s.Parked, DeadLetters{Queue: "delay.parked", Messages: 2, Held: new(int64), Groups: []Group{}})
	expect("clients", s.Clients, []Client{{Name: "relay", Connections: 1, Blocked: 1}, {Name: "shop publish", Connections: 2}})
	if len(s.Findings) == 0 || s.Layouts[0].Drained() || s.Broker == nil {
		t.Errorf("got findings %v and broker %v, want both set, and a first layout that has not drained", s.Findings, s.Broker)
	}
}

// A layout with a queue that the user may not see does not count as drained.
func TestHiddenIsNotDrained(t *testing.T) {
	x := night(t)
	for name, q := range x.snap.Live.Queues {
		q.Messages, q.Unacked, q.Leaving = 0, 0, 0
		q.Hidden = name == "delay.bucket.r2x2-1m.1m"
		x.snap.Live.Queues[name] = q
	}
	for _, l := range x.status().Layouts {
		if want := l.Name == "delay.bucket.r3x3-1s" || l.Name == "delay.native"; l.Name != "delay.plugin" && l.Drained() != want {
			t.Errorf("layout %s: Drained = %t, want %t: %+v", l.Name, l.Drained(), want, l.Waiting)
		}
	}
}

// AMQP counts only ready messages, so a layout without ready messages may still contain others.
func TestOverAMQPOnlyReadyMessagesAreKnown(t *testing.T) {
	x := night(t)
	for name, q := range x.snap.Live.Queues {
		q.Messages, q.Unacked, q.Leaving = 0, 0, 0
		x.snap.Live.Queues[name] = q
	}
	x.snap.Live.BindingsKnown, x.looks = false, nil
	s := x.status()
	for _, l := range s.Layouts {
		if l.Name == "delay.plugin" { // only the management API shows its messages
			continue
		}
		if l.Drained() || l.Waiting.Leaving != nil || l.Waiting.Unacked != nil {
			t.Errorf("layout %s: got %+v and Drained = %t, want false, Leaving = nil and Unacked = nil", l.Name, l.Waiting, l.Drained())
		}
	}
	for _, d := range s.Destinations {
		if d.Waiting.InTransit() != nil || d.Waiting.Complete() || d.Dead != nil && d.Dead.Held != nil {
			t.Errorf("destination %s: got %+v and the dead letters %+v, want the numbers in transit to be unknown", d.Name, d.Waiting, d.Dead)
		}
	}
}

// If the management API has not counted a queue yet, the numbers of messages that are not ready are unknown.
func TestUncountedIsUnknown(t *testing.T) {
	x := night(t)
	for _, name := range []string{"delay.bucket.r2x2-1m.2m", "orders", "orders.dead", "delay.parked"} {
		q := x.snap.Live.Queues[name]
		q.Messages, q.Unacked, q.Leaving, q.ReadyOnly = 0, 0, 0, true
		x.snap.Live.Queues[name] = q
	}
	x.looks = nil
	s := x.status()
	for _, l := range s.Layouts {
		if known := l.Waiting.InTransit() != nil; known == (l.Name == "delay.bucket.r2x2-1m") || known && l.Name != "delay.native" && l.Waiting.Complete() != known || !known && l.Drained() {
			t.Errorf("layout %s: got %+v and Drained = %t, want unknown numbers and false for delay.bucket.r2x2-1m, and known numbers for the others", l.Name, l.Waiting, l.Drained())
		}
	}
	for _, d := range s.Destinations {
		if known := d.Waiting.Leaving != nil && d.Waiting.Unacked != nil; known == (d.Name == "orders") || d.Waiting.Unknown {
			t.Errorf("destination %s: got %+v, want Leaving and Unacked unknown for orders only", d.Name, d.Waiting)
		}
		if d.Dead != nil && (d.Dead.Held != nil || d.Dead.Unknown) {
			t.Errorf("destination %s: got the dead letters %+v, want Held = nil and Unknown = false", d.Name, d.Dead)
		}
	}
	if s.Parked.Held != nil || s.Empty() {
		t.Errorf("got Parked = %+v and Empty = %t, want Held = nil and false", s.Parked, s.Empty())
	}
}

// If no dead letter is ready and a client may hold some, their number is unknown and not 0.
func TestDoubtfulIsUnknown(t *testing.T) {
	x := night(t)
	for _, name := range []string{"orders.dead", "delay.parked"} {
		q := x.snap.Live.Queues[name]
		q.Messages, q.Unacked, q.Leaving, q.Doubtful = 0, 0, 0, true
		x.snap.Live.Queues[name] = q
	}
	x.looks = nil
	s := x.status()
	if !s.Parked.Unknown || s.Parked.Held != nil || s.Empty() {
		t.Errorf("got the parked messages %+v and empty = %t, want an unknown number and false", s.Parked, s.Empty())
	}
	for _, d := range s.Destinations {
		if d.Name == "orders" && (d.Dead == nil || !d.Dead.Unknown || d.Dead.Held != nil) {
			t.Errorf("%s: got the dead letters %+v, want an unknown number", d.Name, d.Dead)
		}
	}
}

// A queue whose messages have not changed is not read again.
func TestRecall(t *testing.T) {
	first := night(t).status()
	s := night(t)
	s.looks, s.known = nil, map[string]DeadLetters{}
	if !s.recall("orders.dead", &first) || s.status().Destinations[2].Dead.Sampled != 3 {
		t.Error("recall did not return the earlier result for orders.dead, want it because the queue has not changed")
	}
	if s.recall("delay.parked", &first) {
		t.Error("recall returned a result for delay.parked, want none because the queue was never read")
	}
	s.snap.Live.Queues["orders.dead"] = plan.Queue{Messages: 5}
	if s.recall("orders.dead", &first) {
		t.Error("recall returned an earlier result for orders.dead, want none because the queue has changed")
	}
}

// Without a broker, the status contains the tasks, and the reason why the broker could not be read.
func TestStatusWithoutBroker(t *testing.T) {
	s := seen{at: time.Unix(1000, 0), cfg: doctor.Config{}.WithDefaults(), tasks: &Tasks{
		Counts: []TaskCount{{Queue: "q", Status: "pending", Count: 2}}, due: []int64{1, 1, 2, 2},
	}}
	s.uncheckedf(AreaBroker, "connection\nrefused")
	got := s.status()
	if got.Broker != nil || got.Complete() || got.Unchecked[0].Why != "connection; refused" || *got.DueSoon[2].Tasks != 2 {
		t.Errorf("got %+v, want no broker, an unchecked area with the reason \"connection; refused\", and two tasks due soon", got)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, unknown := range []string{`"layouts":null`, `"destinations":null`, `"findings":null`, `"clients":null`, `"alarms":null`, `"on_broker_at_least":null`} {
		if !bytes.Contains(text, []byte(unknown)) {
			t.Errorf("got the JSON %s, want %s in it", text, unknown)
		}
	}
}
