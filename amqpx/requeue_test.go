package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// requeue runs until its end, which must not be an error.
func (c *client) requeue(o amqpx.RequeueOptions) amqpx.RequeueReport {
	c.m.Helper()
	if o.Management == nil {
		o.Management = limitedTo(c.m, fmt.Sprint(topology.NoDeliveryLimit))
	}
	r, err := c.Requeue(c.m.Context(), o)
	if err != nil {
		c.m.Fatalf("requeue: %v; %+v", err, r)
	}
	return r
}

// bury sends n messages to a queue and has a handler reject them.
func (c *client) bury(queue string, n int) {
	c.m.Helper()
	k := c.consume(queue, func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(errors.New("card rejected")) }, amqpx.WithConcurrency(1))
	for i := range n {
		c.mustSend(amqpx.Message{ID: fmt.Sprintf("%s-%02d", queue, i), Queue: queue, Headers: amqp.Table{"n": int32(i % 2)}})
		after(time.Second) // dead letters of messages that are handled side by side come in any order
	}
	k.stop()
	c.m.holds(queue+".dead", n, 0)
}

// counts are the numbers of a report, in the order of its fields.
func counts(r amqpx.RequeueReport) string {
	return fmt.Sprintf("%d total, %d looked, %d chosen: %d sent, %d revived, %d removed, %d stayed; %d again, %d moved",
		r.Total, r.Looked, r.Chosen, r.Sent, r.Revived, r.Removed, r.Stayed, r.Again, r.Moved)
}

func wantCounts(t *testing.T, r amqpx.RequeueReport, want string) {
	t.Helper()
	if got := counts(r); got != want {
		t.Errorf("%s\nwant %s\n%+v", got, want, r.Results)
	}
}

// Dead letters go back to their queue as they were sent, with their ids, and
// attempts anew or not.
func TestRequeue(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 3)
		wantCounts(t, c.requeue(amqpx.RequeueOptions{Queue: "q.dead", DryRun: true}), "3 total, 3 looked, 3 chosen: 3 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		m.holds("q.dead", 3, 0)
		r := c.requeue(amqpx.RequeueOptions{Queue: "q.dead"})
		wantCounts(t, r, "3 total, 3 looked, 3 chosen: 3 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		if want := []amqpx.RequeueResult{{Destination: "q", Outcome: amqpx.RequeueSent, Count: 3}}; !reflect.DeepEqual(r.Results, want) {
			t.Errorf("%+v", r.Results)
		}
		m.holds("q.dead", 0, 0)
		if got := m.ids("q"); !slices.Equal(got, []string{"q-00", "q-01", "q-02"}) {
			t.Errorf("in the queue: %v", got)
		}
		got := collector{answer: func(*amqpx.Delivery) error { return errors.New("again") }}
		k := c.consume("q", got.handle, amqpx.WithRetry(topology.Retry{MaxAttempts: 2, Backoff: time.Second}))
		after(time.Minute)
		if a := got.attempts(); !slices.Equal(a, []int{1, 1, 1, 2, 2, 2}) {
			t.Errorf("attempts %v", a)
		}
		d := got.all()[0]
		if d.Headers["n"] == nil || d.Exchange != "" || d.RoutingKey != "q" || d.Headers[amqpx.HeaderReason] != nil || d.Headers[amqpx.HeaderRequeued] == nil {
			t.Errorf("came as %q, %q with %v", d.Exchange, d.RoutingKey, d.Headers)
		}
		if list, _ := d.Headers[amqpx.HeaderAttempts].([]any); len(list) != 1 || d.Headers[amqpx.HeaderError] != "card rejected" {
			t.Errorf("what failed before is gone: %v", d.Headers)
		}
		k.stop()

		c.requeue(amqpx.RequeueOptions{Queue: "q.dead", KeepAttempts: true})
		last := collector{}
		k = c.consume("q", last.handle, amqpx.WithRetry(topology.Retry{MaxAttempts: 2}))
		after(time.Second)
		if a := last.attempts(); !slices.Equal(a, []int{2, 2, 2}) {
			t.Errorf("attempts %v", a)
		}
		k.stop()
	})
}

// What is not chosen stays in its place, except where a broker puts back at the end.
// A reason that no dead letter can have is a mistake, not nothing to do.
func TestRequeueUnknownReason(t *testing.T) {
	for reason, ok := range map[string]bool{"bogus": false, "": false, "Rejected": false, amqpx.ReasonMaxLen: true, amqpx.ReasonUnreadable: true} {
		o := amqpx.RequeueOptions{Queue: "q.dead", Filter: amqpx.DeadLetterFilter{Reasons: []string{amqpx.ReasonRejected, reason}}}
		if err := o.Validate("delay"); (err == nil) != ok || err != nil && (!errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), "it must be rejected, attempts, deliveries")) {
			t.Errorf("%q: %v", reason, err)
		}
	}
}

func TestRequeueFilter(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 6)
		after(time.Hour)
		c.bury("p", 1)
		for _, f := range []amqpx.DeadLetterFilter{
			{Reasons: []string{amqpx.ReasonAttempts}}, {IDs: []string{"no"}}, {Destinations: []string{"p"}}, {Error: "timeout"},
			{Header: "n", HeaderValue: "2"}, {Header: "m"}, {OlderThan: 2 * time.Hour}, {NewerThan: time.Minute},
		} {
			wantCounts(t, c.requeue(amqpx.RequeueOptions{Queue: "q.dead", Filter: f}), "6 total, 6 looked, 0 chosen: 0 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		}
		f := amqpx.DeadLetterFilter{
			Reasons: []string{amqpx.ReasonAttempts, amqpx.ReasonRejected}, Destinations: []string{"q"}, Error: "card", Header: "n", HeaderValue: "1",
			OlderThan: time.Minute, NewerThan: 2 * time.Hour,
		}
		wantCounts(t, c.requeue(amqpx.RequeueOptions{Queue: "q.dead", Filter: f, Limit: 2}), "6 total, 4 looked, 2 chosen: 2 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		if got := m.ids("q"); !slices.Equal(got, []string{"q-01", "q-03"}) {
			t.Errorf("sent %v", got)
		}
		got := m.ids("q.dead")
		slices.Sort(got)
		if want := []string{"q-00", "q-02", "q-04", "q-05"}; !slices.Equal(got, want) {
			t.Errorf("left %v", got)
		}
	})
}

// In what order messages that were put back lie.
func TestRequeuePutsBackInOrder(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 20)
		all := m.ids("q.dead")
		c.requeue(amqpx.RequeueOptions{Queue: "q.dead", Filter: amqpx.DeadLetterFilter{IDs: []string{"q-03", "q-17"}}})
		want := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return id == "q-03" || id == "q-17" })
		if got := m.ids("q.dead"); !slices.Equal(got, want) {
			t.Errorf("left %v", got)
		}
	})
}

// A message that dies again during the run is not taken again, nor does it keep
// the run going.
func TestRequeueOfWhatDiesAgain(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 5)
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(errors.New("card rejected")) })
		other := make(chan amqpx.RequeueReport)
		go func() { // somebody else, who makes room for what comes back
			r, _ := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "q.dead", Rate: 1})
			other <- r
		}()
		r := c.requeue(amqpx.RequeueOptions{Queue: "q.dead", Rate: 1})
		o := <-other
		after(time.Minute)
		m.holds("q.dead", 5, 0)
		if sent := r.Sent + o.Sent; sent != 5 {
			t.Errorf("5 dead letters were sent %d times: %+v, %+v", sent, r, o)
		}
		k.stop()
	})
}

// A message that the broker gave up on goes back to the queue that it died in, and
// one that came through an exchange to the queue whose consumer gave it up.
func TestRequeueWhereItDied(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		_ = m.foreign().ExchangeDeclare("x", "fanout", true, false, false, false, nil)
		for _, q := range []string{"a", "b"} {
			c.mustSend(amqpx.Message{Queue: q, ID: "first"})
			_ = m.foreign().QueueBind(q, "", "x", false, nil)
			_, _ = m.foreign().QueuePurge(q, false)
		}
		c.mustSend(amqpx.Message{ID: "1", Exchange: "x", RoutingKey: "k"})
		after(time.Second)
		k := c.consume("a", func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(errors.New("no")) })
		k.stop()
		raw, ok, err := m.foreign().Get("b", false)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		_ = raw.Reject(false)
		after(time.Second)
		for _, q := range []string{"a", "b"} {
			m.holds(q, 0, 0)
			wantCounts(t, c.requeue(amqpx.RequeueOptions{Queue: q + ".dead"}), "1 total, 1 looked, 1 chosen: 1 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
			m.holds(q, 1, 0)
			got := collector{}
			k := c.consume(q, got.handle)
			after(time.Second)
			if d := got.all(); len(d) != 1 || d[0].Exchange != "x" || d[0].RoutingKey != "k" {
				t.Errorf("%s got %+v", q, d)
			}
			k.stop()
		}
	})
}

// Parked messages go to their destination once it is there again, and wait for
// their instant if they were parked before it.
func TestRequeueParked(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{RecheckInterval: time.Hour})
		began := time.Now()
		c.mustSend(amqpx.Message{ID: "due", Queue: "q", Delay: time.Second}, amqpx.Message{ID: "early", Queue: "q", Delay: 10*time.Minute + time.Second})
		m.deleteQueue("q")
		_ = m.foreign().QueueUnbind("delay.bucket.1s", "", "delay.bucket.1s", nil)
		_ = m.foreign().ExchangeUnbind("delay.bucket.level-1", "", "", false, nil)
		after(10 * time.Second)
		m.holds("delay.parked", 1, 0)
		parked := amqpx.RequeueOptions{Queue: "delay.parked"}
		r := c.requeue(parked)
		wantCounts(t, r, "1 total, 1 looked, 1 chosen: 0 sent, 0 revived, 0 removed, 1 stayed; 0 again, 0 moved")
		if len(r.Results) != 1 || !strings.Contains(r.Results[0].Why, "does not exist") || r.Results[0].Destination != "q" {
			t.Errorf("%+v", r.Results)
		}
		m.holds("delay.parked", 1, 0)
		if _, there := m.Queue("q"); there {
			t.Error("the destination was created")
		}
		// One that was parked on its way: nobody reads the digit of the seconds.
		m.publish("", "delay.parked", amqp.Publishing{MessageId: "way", Headers: amqp.Table{amqpx.HeaderDue: began.Add(20 * time.Minute).UnixMilli()}})
		m.publish("delay.parked", "clock.0.0.0.20.0.0.q", amqp.Publishing{MessageId: "wait", Headers: amqp.Table{amqpx.HeaderDue: began.Add(20 * time.Minute).UnixMilli()}})
		got := collector{}
		k := c.consume("q", got.handle)
		r = c.requeue(parked)
		wantCounts(t, r, "3 total, 3 looked, 3 chosen: 2 sent, 0 revived, 0 removed, 1 stayed; 0 again, 0 moved") // nothing tells where "way" belongs
		after(30 * time.Minute)
		times := got.since(began)
		if d := times["due"]; len(d) != 1 || d[0] > 11*time.Second {
			t.Errorf("due came after %v", d)
		}
		if d := times["wait"]; len(d) != 1 || d[0] < 20*time.Minute {
			t.Errorf("wait came after %v", d)
		}
		r = c.requeue(amqpx.RequeueOptions{Queue: "delay.parked", To: topology.Destination{Queue: "q"}})
		wantCounts(t, r, "1 total, 1 looked, 1 chosen: 1 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		k.stop()
	})
}

// A destination that takes nothing is asked once, and is nobody else's trouble.
func TestRequeueToWhatRefuses(t *testing.T) {
	const full, gone, forbidden = "refuses messages", "does not exist", "may not write"
	for name, c := range map[string]struct {
		spoil func(m *memory)
		why   string
		tries int // publishes to the destination, at most
	}{
		"gone":      {func(m *memory) { m.deleteQueue("q") }, gone, 1},
		"full":      {func(m *memory) { m.Nack("q") }, full, 40},
		"forbidden": {func(m *memory) { m.Refuse("q", amqp.AccessRefused, "no") }, forbidden, 5},
		"silent":    {func(m *memory) { m.Silence("q") }, "no confirm", 1},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				cl := m.open(amqpx.Config{})
				cl.bury("q", 5)
				cl.bury("p", 5)
				for _, msg := range m.queue("p.dead").Messages { // both in one queue
					m.publish("", "q.dead", msg.Publishing)
				}
				c.spoil(m)
				after(time.Second)
				before := m.Publishes("")
				r := cl.requeue(amqpx.RequeueOptions{Queue: "q.dead"})
				wantCounts(t, r, "10 total, 10 looked, 10 chosen: 5 sent, 0 revived, 0 removed, 5 stayed; 0 again, 0 moved")
				m.holds("q.dead", 5, 0)
				m.holds("p", 5, 0)
				if n := m.Publishes("") - before - 5; n > c.tries {
					t.Errorf("%d publishes to a queue that refuses", n)
				}
				for _, x := range r.Results {
					if x.Outcome == amqpx.RequeueStayed && (x.Destination != "q" || x.Count != 5 || !strings.Contains(x.Why, c.why)) {
						t.Errorf("%+v", x)
					}
				}
			})
		})
	}
}

// limitedTo is the management API of a broker whose queues have a delivery limit.
func limitedTo(t testing.TB, limit string) *live.Management {
	t.Helper()
	return managed(t, `{"type": "quorum", "effective_policy_definition": {"delivery-limit": `+limit+`}}`)
}

// managed is a management API that has one answer.
func managed(t testing.TB, answer string) *live.Management {
	t.Helper()
	m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: answers(answer)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// noDatabase is a database that has died.
type noDatabase struct{}

var errNoDatabase = errors.New("no database")

func (noDatabase) RequeueDead(context.Context, *amqpx.DeadLetter, bool) (amqpx.RequeueOutcome, string, error) {
	return "", "", errNoDatabase
}

// byID is a TaskStore that gives a task's id as the outcome.
type byID struct{}

func (byID) RequeueDead(_ context.Context, l *amqpx.DeadLetter, _ bool) (amqpx.RequeueOutcome, string, error) {
	return amqpx.RequeueOutcome(l.ID), "", nil
}

// A task stays if what the store says of it means nothing.
func TestRequeueWithAnUnknownOutcome(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(nil) }, amqpx.WithConcurrency(1))
		for _, id := range []string{"revived", "outcome", "done"} {
			c.mustSend(amqpx.Message{ID: id, Queue: "q", Version: 1})
		}
		after(time.Second)
		k.stop()
		for _, dry := range []bool{true, false} {
			r := c.requeue(amqpx.RequeueOptions{Queue: "q.dead", Tasks: byID{}, DryRun: dry})
			wantCounts(t, r, "3 total, 3 looked, 3 chosen: 0 sent, 1 revived, 0 removed, 2 stayed; 0 again, 0 moved")
			if why := r.Results[1].Why; !strings.Contains(why, "unknown") {
				t.Errorf("stayed because %q", why)
			}
		}
		m.holds("q.dead", 2, 0)
	})
}

// answers is an HTTP server that has one answer.
type answers string

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(a)))}, nil
}

// What a queue may drop when it is put back goes to the queue's end instead, also
// when the run ends before it was looked at; and a queue that drops nothing is left
// as it is.
func TestRequeueSparesTheDeliveryLimit(t *testing.T) {
	cut := func(amqpx.RequeueReport) {} // the context ends with it
	chosen := func(ids ...string) amqpx.DeadLetterFilter { return amqpx.DeadLetterFilter{IDs: ids} }
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.0"} {
		for name, c := range map[string]struct {
			limit  int64
			policy string
			o      amqpx.RequeueOptions
			moves  bool // before 4.3
		}{
			"dry run":          {3, "3", amqpx.RequeueOptions{DryRun: true}, true},
			"policy":           {topology.NoDeliveryLimit, "3", amqpx.RequeueOptions{DryRun: true}, true},
			"no limit":         {topology.NoDeliveryLimit, "1000000000", amqpx.RequeueOptions{DryRun: true}, false},
			"ended early":      {3, "3", amqpx.RequeueOptions{Filter: chosen("0"), Limit: 1}, true},
			"unknown":          {3, "", amqpx.RequeueOptions{Filter: chosen("none")}, true},
			"unknown, ours":    {topology.NoDeliveryLimit, "", amqpx.RequeueOptions{Filter: chosen("none")}, true},
			"unknown, early":   {3, "", amqpx.RequeueOptions{Filter: chosen("0"), Limit: 1}, true},
			"database":         {3, "", amqpx.RequeueOptions{Tasks: noDatabase{}}, true},
			"cut off":          {3, "3", amqpx.RequeueOptions{Filter: chosen("none"), Progress: cut}, true},
			"unknown, cut off": {3, "", amqpx.RequeueOptions{Filter: chosen("none"), Progress: cut}, true},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				inMemoryOf(t, amqptest.Options{Version: version}, func(t *testing.T, m *memory) {
					cl := m.open(amqpx.Config{})
					m.declareQueue("q", amqp.Table{"x-queue-type": "quorum"})
					m.declareQueue("dead", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": c.limit})
					o := c.o
					o.Queue, o.To.Queue = "dead", "q"
					var headers amqp.Table
					if o.Tasks != nil {
						headers, o.To.Queue = amqp.Table{amqpx.HeaderReason: amqpx.ReasonRejected, amqpx.HeaderQueue: "q", amqpx.HeaderVersion: int64(1)}, ""
					}
					if c.policy != "" {
						o.Management = limitedTo(t, c.policy)
					}
					for i := range 10 {
						m.publish("", "dead", amqp.Publishing{MessageId: fmt.Sprint(i), Headers: headers})
					}
					moved := 0
					for range 20 {
						ctx, cancel := context.WithCancel(t.Context())
						if c.o.Progress != nil {
							o.Progress = func(amqpx.RequeueReport) { cancel() }
						}
						r, err := cl.Requeue(ctx, o)
						if err != nil && ctx.Err() == nil && !errors.Is(err, errNoDatabase) {
							t.Fatalf("%v; %+v", err, r)
						}
						cancel()
						moved += r.Moved
						for _, id := range m.ids("q") {
							m.publish("", "dead", amqp.Publishing{MessageId: id})
						}
						_, _ = m.foreign().QueuePurge("q", false)
					}
					after(time.Second)
					there := map[string]bool{}
					for _, id := range m.ids("dead") {
						there[id] = true
					}
					if len(there) != 10 {
						t.Errorf("%v are left", there)
					}
					if moves := c.moves && version != "4.3.0"; moves != (moved > 0) {
						t.Errorf("%d were moved", moved)
					}
				})
			})
		}
	}
}

// Long messages are taken by few, so that they find room in memory.
func TestRequeueOfLongMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.declareQueue("q", nil)
		m.declareQueue("dead", amqp.Table{"x-queue-type": "quorum"})
		body := make([]byte, 4<<20)
		for i := range 40 {
			m.publish("", "dead", amqp.Publishing{MessageId: fmt.Sprint(i), Body: body})
		}
		after(time.Second)
		most := 0
		r := c.requeue(amqpx.RequeueOptions{Queue: "dead", To: topology.Destination{Queue: "q"}, Progress: func(amqpx.RequeueReport) {
			most = max(most, m.queue("dead").Unacked)
		}})
		if r.Sent != 40 || most > 8 {
			t.Errorf("%d of 4 MiB were taken at a time; %+v", most, r)
		}
	})
}

// A dry run asks for a destination once, and not for each message.
func TestRequeueDryRunAsksOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.declareQueue("q", nil)
		m.declareQueue("dead", amqp.Table{"x-queue-type": "quorum"})
		for i := range 100 {
			m.publish("", "dead", amqp.Publishing{MessageId: fmt.Sprint(i)})
		}
		before := m.Calls("queue.declare")
		if r := c.requeue(amqpx.RequeueOptions{Queue: "dead", To: topology.Destination{Queue: "q"}, DryRun: true}); r.Sent != 100 {
			t.Errorf("%+v", r)
		}
		if n := m.Calls("queue.declare") - before; n > 10 {
			t.Errorf("%d declarations", n)
		}
	})
}

// Where the limit is not known, a look would change the queue or cost a delivery.
func TestRequeueDryRunNeedsTheLimit(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.declareQueue("classic", amqp.Table{"x-queue-type": "classic"})
		m.declareQueue("quorum", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		for _, queue := range []string{"classic", "quorum"} {
			m.publish("", queue, amqp.Publishing{MessageId: "1"})
		}
		const limit = `{"type": "quorum", "arguments": {"x-delivery-limit": 1000000000}`
		for _, x := range []struct {
			queue string
			m     *live.Management
			why   string
		}{
			{"classic", nil, ""},
			{"classic", managed(t, `{"type": "classic"}`), ""},
			{"quorum", nil, "broker.management_url"},
			{"quorum", managed(t, limit+`}`), "try again in 10 s"}, // no figures yet
			{"quorum", managed(t, limit+`, "effective_policy_definition": []}`), ""},
			{"quorum", managed(t, limit+`, "effective_policy_definition": {}}`), ""},
		} {
			_, err := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: x.queue, DryRun: true, Management: x.m})
			if errors.Is(err, amqpx.ErrPeek) != (x.why != "") || err != nil && !strings.Contains(err.Error(), x.why) {
				t.Errorf("%+v: %v", x, err)
			}
		}
	})
}

// Messages that are alive, or of which nothing is known, are not touched.
func TestRequeueOfWhatIsNoDeadLetter(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{ID: "1", Queue: "q"}, amqpx.Message{ID: "2", Queue: "q", Delay: time.Second})
		after(time.Minute)
		r := c.requeue(amqpx.RequeueOptions{Queue: "q"})
		wantCounts(t, r, "2 total, 2 looked, 2 chosen: 0 sent, 0 revived, 0 removed, 2 stayed; 0 again, 0 moved")
		m.holds("q", 2, 0)
	})
}

func TestRequeueRefuses(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		for _, o := range []amqpx.RequeueOptions{
			{}, {Queue: "delay.bucket.1s"}, {Queue: "q", InFlight: -1}, {Queue: "q", InFlight: 1001}, {Queue: "q", Limit: -1}, {Queue: "q", Rate: -1},
			{Queue: "q", To: topology.Destination{Queue: "q"}}, {Queue: "q", To: topology.Destination{Queue: "delay.parked"}},
			{Queue: "q", Filter: amqpx.DeadLetterFilter{OlderThan: -1}},
		} {
			if _, err := c.Requeue(t.Context(), o); !errors.Is(err, amqpx.ErrConfig) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		_, err := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "nowhere"})
		if ae, ok := errors.AsType[*amqp.Error](err); !ok || ae.Code != amqp.NotFound {
			t.Errorf("a queue that is not there: %v", err)
		}
	})
}

// A broker that blocks stops the run; nothing is lost.
func TestRequeueWhileBlocked(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 3)
		m.Block("memory")
		r, err := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "q.dead"})
		if !errors.Is(err, amqpx.ErrBlocked) && r.Stayed == 0 {
			t.Errorf("%v; %+v", err, r)
		}
		m.Unblock()
		after(time.Minute)
		if n := m.queue("q.dead").Ready; n < 3 {
			t.Errorf("%d dead letters are left", n)
		}
	})
}

// However the run is interrupted, each message is there, and at most one is there
// twice.
func TestRequeueInterrupted(t *testing.T) {
	for _, method := range []string{"basic.publish", "basic.ack", "basic.consume", "basic.cancel", "basic.nack", "basic.qos", "basic.get"} {
		for n := range 12 {
			t.Run(fmt.Sprintf("%s %d", method, n+1), func(t *testing.T) {
				inMemory(t, func(t *testing.T, m *memory) {
					c := m.open(amqpx.Config{})
					c.bury("q", 10)
					undo := m.CutAt(method, n+1)
					_, err := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "q.dead"})
					undo()
					after(time.Minute)
					there := map[string]int{}
					for _, id := range append(m.ids("q"), m.ids("q.dead")...) {
						there[id]++
					}
					twice := 0
					for _, n := range there {
						twice += n - 1
					}
					if len(there) != 10 || twice > 1 {
						t.Errorf("%d of 10 messages are there, %d of them twice (%v)", len(there), twice, err)
					}
				})
			})
		}
	}
}

// A run ends where the broker does not answer when its channel is closed.
func TestRequeueWithoutAGoodbye(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 1)
		m.Control(func(f amqptest.Frame) amqptest.Action {
			return amqptest.Action{Drop: f.Method == "channel.close-ok" && strings.HasSuffix(f.Connection, " consume")}
		})
		ended := make(chan error, 1)
		go func() {
			_, err := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "q.dead"})
			ended <- err
		}()
		after(time.Minute)
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the run still waits")
			m.CutConnections()
		}
		m.holds("q", 1, 0)
	})
}

// A copy at the end of the queue does not go to the queues that CC once named.
func TestRequeueCopiesToTheQueueAlone(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.declareQueue("other", nil)
		m.declareQueue("theirs", amqp.Table{"x-queue-type": "quorum"})
		foreign := amqp.Publishing{MessageId: "1", Headers: amqp.Table{"CC": []any{"other"}, "mine": "kept"}}
		m.publish("", "theirs", foreign) // as it lies in a dead-letter queue without a routing key of its own
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(nil) })
		m.publish("", "q", foreign)
		after(time.Second)
		k.stop()
		m.holds("other", 2, 0)
		for _, queue := range []string{"theirs", "q.dead"} {
			r, err := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: queue, Filter: amqpx.DeadLetterFilter{IDs: []string{"none"}}})
			if err != nil || r.Moved != 1 {
				t.Fatalf("%v; %+v", err, r)
			}
			m.holds(queue, 1, 0)
			m.holds("other", 2, 0)
			raw, _, err := m.foreign().Get(queue, true)
			if err != nil {
				t.Fatal(err)
			}
			d := amqpx.ReadDeadLetter(raw, queue, "delay")
			if cc, _ := d.Headers["CC"].([]any); len(cc) != 1 || cc[0] != "other" || d.Headers["mine"] != "kept" {
				t.Errorf("from %s: %v", queue, d.Headers)
			}
		}
	})
}

// A message whose copy the broker does not take stays, and the error is the broker's.
func TestRequeueWithoutACopy(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(*memory) func()
		want  string
	}{
		"returned": {func(m *memory) func() { return m.Return("theirs") }, "NO_ROUTE"},
		"nacked":   {func(m *memory) func() { return m.Nack("theirs") }, amqpx.ErrNacked.Error()},
		"closed":   {func(m *memory) func() { return m.Deny("", amqptest.PermissionWrite, "^amq.default$") }, "ACCESS_REFUSED"},
		"cut":      {func(m *memory) func() { return m.CutAt("basic.publish", 1) }, "connection ended before the confirm"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
				cl := m.open(amqpx.Config{})
				m.declareQueue("theirs", amqp.Table{"x-queue-type": "quorum"})
				m.publish("", "theirs", amqp.Publishing{MessageId: "1"})
				undo := c.fault(m)
				_, err := cl.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "theirs", Filter: amqpx.DeadLetterFilter{IDs: []string{"none"}}})
				if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "%!") {
					t.Errorf("want %q, got %v", c.want, err)
				}
				undo()
				after(time.Minute)
				m.holds("theirs", 1, 0)
			})
		})
	}
}

// A user-id in a header that anybody may write is not believed by way of a requeue, which
// sends on through the strategy what is not due yet.
func TestRequeueBelievesNoUserOfAHeader(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.consume("q", nothing).stop()
		m.publish("", "q.dead", amqp.Publishing{MessageId: "1", Headers: amqp.Table{
			amqpx.HeaderReason: amqpx.ReasonRejected, amqpx.HeaderQueue: "q", amqpx.HeaderDue: time.Now().Add(time.Minute).UnixMilli(),
			amqpx.HeaderCarried: amqp.Table{"user-id": "root"},
		}})
		if r := c.requeue(amqpx.RequeueOptions{Queue: "q.dead"}); r.Sent != 1 {
			t.Fatalf("%+v", r)
		}
		var got collector
		k := c.consume("q", got.handle)
		after(time.Hour)
		k.stop()
		if all := got.all(); len(all) != 1 || all[0].UserID != "" {
			t.Errorf("%d came, the first of user %q", len(all), all[0].UserID)
		}
	})
}
