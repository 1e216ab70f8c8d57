package inspect_test

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
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// requeue calls Requeue, and stops the test if it returns an error.
func (c *client) requeue(o inspect.RequeueOptions) inspect.RequeueReport {
	c.m.Helper()
	if o.Management == nil {
		o.Management = limitedTo(c.m, fmt.Sprint(topology.NoDeliveryLimit))
	}
	r, err := inspect.Requeue(c.m.Context(), c.Client, o)
	if err != nil {
		c.m.Fatalf("Requeue: got %v, want no error; the report is %+v", err, r)
	}
	return r
}

// bury fills the dead-letter queue of a queue with n messages that a handler has rejected.
func (c *client) bury(queue string, n int) {
	c.m.Helper()
	stop := c.consume(queue, rejects, amqpx.WithConcurrency(1))
	for i := range n {
		c.mustSend(amqpx.Message{ID: fmt.Sprintf("%s-%02d", queue, i), Queue: queue, Headers: amqp.Table{"n": int32(i % 2)}})
		inmemory.After(time.Second) // without a pause, the dead letters could arrive in any order
	}
	stop()
	c.m.Holds(queue+".dead", n, 0)
}

// counts formats the numbers of a report, in the order of its fields.
func counts(r inspect.RequeueReport) string {
	return fmt.Sprintf("%d total, %d examined, %d chosen: %d sent, %d revived, %d removed, %d stayed; %d again, %d moved",
		r.Total, r.Examined, r.Chosen, r.Sent, r.Revived, r.Removed, r.Stayed, r.DiedAgain, r.Moved)
}

func wantCounts(t *testing.T, r inspect.RequeueReport, want string) {
	t.Helper()
	if got := counts(r); got != want {
		t.Errorf("the counts of the report:\ngot  %s\nwant %s\n%+v", got, want, r.Results)
	}
}

// Requeued dead letters return to their queue unchanged, with their ids. Their attempts are counted from 1 again,
// unless KeepAttempts is set.
func TestRequeue(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 3)
		wantCounts(t, c.requeue(inspect.RequeueOptions{Queue: "q.dead", DryRun: true}),
			"3 total, 3 examined, 3 chosen: 3 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		m.Holds("q.dead", 3, 0)
		r := c.requeue(inspect.RequeueOptions{Queue: "q.dead"})
		wantCounts(t, r, "3 total, 3 examined, 3 chosen: 3 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		if want := []inspect.RequeueResult{{Destination: "q", Outcome: inspect.RequeueSent, Count: 3}}; !reflect.DeepEqual(r.Results, want) {
			t.Errorf("Requeue: got the results %+v, want %+v", r.Results, want)
		}
		m.Holds("q.dead", 0, 0)
		if got := m.IDs("q"); !slices.Equal(got, []string{"q-00", "q-01", "q-02"}) {
			t.Errorf("messages in the queue: got %v, want [q-00 q-01 q-02]", got)
		}
		got := collector{answer: errors.New("again")}
		stop := c.consume("q", got.handle, amqpx.WithRetry(topology.Retry{MaxAttempts: 2, Backoff: time.Second}))
		inmemory.After(time.Minute)
		if a := got.attempts(); !slices.Equal(a, []int{1, 1, 1, 2, 2, 2}) {
			t.Errorf("after Requeue: got the attempts %v, want [1 1 1 2 2 2]", a)
		}
		d := got.all()[0]
		if d.Headers["n"] == nil || d.Exchange != "" || d.RoutingKey != "q" || d.Headers[amqpx.HeaderReason] != nil || d.Headers[header.Requeued] == nil {
			t.Errorf("the first delivery: got the exchange %q, the routing key %q and the headers %v, want the queue q, the header n, a requeue time and no reason", d.Exchange, d.RoutingKey, d.Headers)
		}
		if list, _ := d.Headers[amqpx.HeaderAttempts].([]any); len(list) != 1 || d.Headers[amqpx.HeaderError] != "card rejected" {
			t.Errorf("the first delivery: got the headers %v, want one earlier failure and the error \"card rejected\"", d.Headers)
		}
		stop()

		c.requeue(inspect.RequeueOptions{Queue: "q.dead", KeepAttempts: true})
		last := collector{}
		stop = c.consume("q", last.handle, amqpx.WithRetry(topology.Retry{MaxAttempts: 2}))
		inmemory.After(time.Second)
		if a := last.attempts(); !slices.Equal(a, []int{2, 2, 2}) {
			t.Errorf("after Requeue with KeepAttempts: got the attempts %v, want [2 2 2]", a)
		}
		stop()
	})
}

// Validate refuses a filter by a reason that no dead letter can have, because such a filter would select nothing.
func TestRequeueUnknownReason(t *testing.T) {
	for reason, ok := range map[string]bool{"bogus": false, "": false, "Rejected": false, inspect.ReasonMaxLen: true, inspect.ReasonUnreadable: true} {
		o := inspect.RequeueOptions{Queue: "q.dead", Filter: inspect.DeadLetterFilter{Reasons: []string{inspect.ReasonRejected, reason}}}
		err := o.Validate("delay")
		if (err == nil) != ok {
			t.Errorf("Validate with the reason %q: got %v, want an error: %t", reason, err, !ok)
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("Validate with the reason %q: got %v, want amqpx.ErrConfig", reason, err)
		}
		if !strings.Contains(err.Error(), "it must be rejected, attempts, deliveries") {
			t.Errorf(`Validate with the reason %q: got %v, want an error with "it must be rejected, attempts, deliveries"`, reason, err)
		}
	}
}

// Messages that the filter does not select stay in the queue.
func TestRequeueFilter(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 6)
		inmemory.After(time.Hour)
		c.bury("p", 1)
		for _, f := range []inspect.DeadLetterFilter{
			{Reasons: []string{inspect.ReasonAttempts}}, {IDs: []string{"no"}}, {Destinations: []string{"p"}}, {Error: "timeout"},
			{Header: "n", HeaderValue: "2"}, {Header: "m"}, {OlderThan: 2 * time.Hour}, {NewerThan: time.Minute},
		} {
			wantCounts(t, c.requeue(inspect.RequeueOptions{Queue: "q.dead", Filter: f}),
				"6 total, 6 examined, 0 chosen: 0 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		}
		f := inspect.DeadLetterFilter{
			Reasons: []string{inspect.ReasonAttempts, inspect.ReasonRejected}, Destinations: []string{"q"}, Error: "card", Header: "n", HeaderValue: "1",
			OlderThan: time.Minute, NewerThan: 2 * time.Hour,
		}
		wantCounts(t, c.requeue(inspect.RequeueOptions{Queue: "q.dead", Filter: f, Limit: 2}),
			"6 total, 4 examined, 2 chosen: 2 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		if got := m.IDs("q"); !slices.Equal(got, []string{"q-01", "q-03"}) {
			t.Errorf("queue q: got the messages %v, want [q-01 q-03]", got)
		}
		got := m.IDs("q.dead")
		slices.Sort(got)
		if want := []string{"q-00", "q-02", "q-04", "q-05"}; !slices.Equal(got, want) {
			t.Errorf("messages left in q.dead: got %v, want %v", got, want)
		}
	})
}

// Messages that Requeue puts back keep their order.
func TestRequeuePutsBackInOrder(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 20)
		all := m.IDs("q.dead")
		c.requeue(inspect.RequeueOptions{Queue: "q.dead", Filter: inspect.DeadLetterFilter{IDs: []string{"q-03", "q-17"}}})
		want := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return id == "q-03" || id == "q-17" })
		if got := m.IDs("q.dead"); !slices.Equal(got, want) {
			t.Errorf("messages left in q.dead: got %v, want %v", got, want)
		}
	})
}

// A message that is dead-lettered again during a run is not requeued a second time, so that the run ends.
func TestRequeueOfMessagesThatDieAgain(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 5)
		stop := c.consume("q", rejects)
		other := make(chan inspect.RequeueReport)
		go func() { // a concurrent run on the same queue
			r, _ := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q.dead", Rate: 1})
			other <- r
		}()
		r := c.requeue(inspect.RequeueOptions{Queue: "q.dead", Rate: 1})
		o := <-other
		inmemory.After(time.Minute)
		m.Holds("q.dead", 5, 0)
		if sent := r.Sent + o.Sent; sent != 5 {
			t.Errorf("the two runs sent %d messages, want 5: %+v, %+v", sent, r, o)
		}
		stop()
	})
}

// A dead letter of a message from an exchange returns only to the queue in which the message died, whether a consumer
// or the broker dead-lettered it.
func TestRequeueWhereItDied(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		_ = m.Channel().ExchangeDeclare("x", "fanout", true, false, false, false, nil)
		for _, q := range []string{"a", "b"} {
			c.mustSend(amqpx.Message{Queue: q, ID: "first"})
			_ = m.Channel().QueueBind(q, "", "x", false, nil)
			_, _ = m.Channel().QueuePurge(q, false)
		}
		c.mustSend(amqpx.Message{ID: "1", Exchange: "x", RoutingKey: "k"})
		inmemory.After(time.Second)
		stop := c.consume("a", rejects)
		stop()
		raw, ok, err := m.Channel().Get("b", false)
		if !ok || err != nil {
			t.Fatalf("basic.get: got a message: %t, error %v, want a message and no error", ok, err)
		}
		_ = raw.Reject(false)
		inmemory.After(time.Second)
		for _, q := range []string{"a", "b"} {
			m.Holds(q, 0, 0)
			wantCounts(t, c.requeue(inspect.RequeueOptions{Queue: q + ".dead"}), "1 total, 1 examined, 1 chosen: 1 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
			m.Holds(q, 1, 0)
			got := collector{}
			stop := c.consume(q, got.handle)
			inmemory.After(time.Second)
			if d := got.all(); len(d) != 1 || d[0].Exchange != "x" || d[0].RoutingKey != "k" {
				t.Errorf("queue %s: got %+v, want one message with the exchange x and the key k", q, d)
			}
			stop()
		}
	})
}

// Parked messages are sent to their destination once it exists again. Messages that were parked before they were due
// are delivered when they are due.
func TestRequeueParked(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{RecheckInterval: time.Hour})
		began := time.Now()
		c.mustSend(amqpx.Message{ID: "due", Queue: "q", Delay: time.Second}, amqpx.Message{ID: "early", Queue: "q", Delay: 10*time.Minute + time.Second})
		m.Delete("q")
		_ = m.Channel().QueueUnbind("delay.bucket.1s", "", "delay.bucket.1s", nil)
		_ = m.Channel().ExchangeUnbind("delay.bucket.level-1", "", "", false, nil)
		inmemory.After(10 * time.Second)
		m.Holds("delay.parked", 1, 0)
		parked := inspect.RequeueOptions{Queue: "delay.parked"}
		r := c.requeue(parked)
		wantCounts(t, r, "1 total, 1 examined, 1 chosen: 0 sent, 0 revived, 0 removed, 1 stayed; 0 again, 0 moved")
		if len(r.Results) != 1 || !strings.Contains(r.Results[0].Why, "does not exist") || r.Results[0].Destination != "q" {
			t.Errorf(`Requeue of a parked message: got %+v, want one result for q with "does not exist"`, r.Results)
		}
		m.Holds("delay.parked", 1, 0)
		if _, there := m.Queue("q"); there {
			t.Error("Requeue created the queue q, want it to stay missing")
		}
		// The routing key of a message that was parked between two delay queues shows its destination. The message way
		// has no such key.
		m.Publish("", "delay.parked", amqp.Publishing{MessageId: "way", Headers: amqp.Table{amqpx.HeaderDue: began.Add(20 * time.Minute).UnixMilli()}})
		m.Publish("delay.parked", "clock.0.0.0.20.0.0.q", amqp.Publishing{MessageId: "wait",
			Headers: amqp.Table{amqpx.HeaderDue: began.Add(20 * time.Minute).UnixMilli()}})
		got := collector{}
		stop := c.consume("q", got.handle)
		r = c.requeue(parked)
		wantCounts(t, r, "3 total, 3 examined, 3 chosen: 2 sent, 0 revived, 0 removed, 1 stayed; 0 again, 0 moved") // "way" does not show its destination, so it stays
		inmemory.After(30 * time.Minute)
		times := got.since(began)
		if d := times["due"]; len(d) != 1 || d[0] > 11*time.Second {
			t.Errorf("message due was delivered after %v, want one delivery within 11s", d)
		}
		if d := times["wait"]; len(d) != 1 || d[0] < 20*time.Minute {
			t.Errorf("message wait was delivered after %v, want one delivery after at least 20m", d)
		}
		r = c.requeue(inspect.RequeueOptions{Queue: "delay.parked", To: topology.Destination{Queue: "q"}})
		wantCounts(t, r, "1 total, 1 examined, 1 chosen: 1 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
		stop()
	})
}

// A destination that accepts nothing is tried only a few times, and does not affect other destinations.
func TestRequeueToARefusingDestination(t *testing.T) {
	const full, gone, forbidden = "refuses messages", "does not exist", "not allowed to write"
	for name, c := range map[string]struct {
		spoil func(m *memory)
		why   string
		tries int // maximum number of publishes to the destination
	}{
		"gone":      {func(m *memory) { m.Delete("q") }, gone, 1},
		"full":      {func(m *memory) { m.Nack("q") }, full, 40},
		"forbidden": {func(m *memory) { m.Refuse("q", amqp.AccessRefused, "no") }, forbidden, 5},
		"silent":    {func(m *memory) { m.Silence("q") }, "did not confirm", 1},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				cl := m.open(amqpx.Config{})
				cl.bury("q", 5)
				cl.bury("p", 5)
				for _, msg := range m.State("p.dead").Messages { // puts the dead letters from both queues into one queue
					m.Publish("", "q.dead", msg.Publishing)
				}
				c.spoil(m)
				inmemory.After(time.Second)
				before := m.Publishes("")
				r := cl.requeue(inspect.RequeueOptions{Queue: "q.dead"})
				wantCounts(t, r, "10 total, 10 examined, 10 chosen: 5 sent, 0 revived, 0 removed, 5 stayed; 0 again, 0 moved")
				m.Holds("q.dead", 5, 0)
				m.Holds("p", 5, 0)
				if n := m.Publishes("") - before - 5; n > c.tries {
					t.Errorf("Requeue published %d times to a queue that refuses, want at most %d", n, c.tries)
				}
				for _, x := range r.Results {
					if x.Outcome == inspect.RequeueStayed && (x.Destination != "q" || x.Count != 5 || !strings.Contains(x.Why, c.why)) {
						t.Errorf("a result of Requeue: got %+v, want 5 messages for q that stayed because %q", x, c.why)
					}
				}
			})
		})
	}
}

// limitedTo returns the management API of a broker whose queues have the given delivery limit.
func limitedTo(t testing.TB, limit string) *live.Management {
	t.Helper()
	return managed(t, `{"type": "quorum", "effective_policy_definition": {"delivery-limit": `+limit+`}}`)
}

// managed returns a management API that always returns the same response.
func managed(t testing.TB, answer string) *live.Management {
	t.Helper()
	m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: answers(answer)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// noDatabase is a TaskStore whose database is down.
type noDatabase struct{}

var errNoDatabase = errors.New("no database")

func (noDatabase) RequeueDead(context.Context, *inspect.DeadLetter, bool) (inspect.RequeueOutcome, string, error) {
	return "", "", errNoDatabase
}

// byID is a TaskStore that returns the id of a task as its outcome.
type byID struct{}

func (byID) RequeueDead(_ context.Context, l *inspect.DeadLetter, _ bool) (inspect.RequeueOutcome, string, error) {
	return inspect.RequeueOutcome(l.ID), "", nil
}

// The dead letter of a task stays if the store returns an unknown outcome for it.
func TestRequeueWithAnUnknownOutcome(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		stop := c.consume("q", rejects, amqpx.WithConcurrency(1))
		for _, id := range []string{"revived", "outcome", "done"} {
			c.mustSend(amqpx.Message{ID: id, Queue: "q", Version: 1})
		}
		inmemory.After(time.Second)
		stop()
		for _, dry := range []bool{true, false} {
			r := c.requeue(inspect.RequeueOptions{Queue: "q.dead", Tasks: byID{}, DryRun: dry})
			wantCounts(t, r, "3 total, 3 examined, 3 chosen: 0 sent, 1 revived, 0 removed, 2 stayed; 0 again, 0 moved")
			if why := r.Results[1].Why; !strings.Contains(why, "unknown") {
				t.Errorf(`the message stayed with the reason %q, want one with "unknown"`, why)
			}
		}
		m.Holds("q.dead", 2, 0)
	})
}

// answers is an HTTP transport that always gives the same answer.
type answers string

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(a)))}, nil
}

// A message that its queue might drop when it is put back is copied to the end of the queue instead, even if the run
// stops before it has examined the message. A queue that drops nothing is left unchanged.
func TestRequeueSparesTheDeliveryLimit(t *testing.T) {
	cut := func(inspect.RequeueReport) {} // replaced below by a function that cancels the run
	chosen := func(ids ...string) inspect.DeadLetterFilter { return inspect.DeadLetterFilter{IDs: ids} }
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.0"} {
		for name, c := range map[string]struct {
			limit  int64
			policy string
			o      inspect.RequeueOptions
			moves  bool // whether messages are moved to the end of the queue, which happens only before RabbitMQ 4.3
		}{
			"dry run":          {3, "3", inspect.RequeueOptions{DryRun: true}, true},
			"policy":           {topology.NoDeliveryLimit, "3", inspect.RequeueOptions{DryRun: true}, true},
			"no limit":         {topology.NoDeliveryLimit, "1000000000", inspect.RequeueOptions{DryRun: true}, false},
			"ended early":      {3, "3", inspect.RequeueOptions{Filter: chosen("0"), Limit: 1}, true},
			"unknown":          {3, "", inspect.RequeueOptions{Filter: chosen("none")}, true},
			"unknown, ours":    {topology.NoDeliveryLimit, "", inspect.RequeueOptions{Filter: chosen("none")}, true},
			"unknown, early":   {3, "", inspect.RequeueOptions{Filter: chosen("0"), Limit: 1}, true},
			"database":         {3, "", inspect.RequeueOptions{Tasks: noDatabase{}}, true},
			"cut off":          {3, "3", inspect.RequeueOptions{Filter: chosen("none"), Progress: cut}, true},
			"unknown, cut off": {3, "", inspect.RequeueOptions{Filter: chosen("none"), Progress: cut}, true},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				inMemoryOf(t, amqptest.Options{Version: version}, func(t *testing.T, m *memory) {
					cl := m.open(amqpx.Config{})
					m.Declare("q", amqp.Table{"x-queue-type": "quorum"})
					m.Declare("dead", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": c.limit})
					o := c.o
					o.Queue, o.To.Queue = "dead", "q"
					var headers amqp.Table
					if o.Tasks != nil {
						headers, o.To.Queue = amqp.Table{amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: "q", amqpx.HeaderVersion: int64(1)}, ""
					}
					if c.policy != "" {
						o.Management = limitedTo(t, c.policy)
					}
					for i := range 10 {
						m.Publish("", "dead", amqp.Publishing{MessageId: fmt.Sprint(i), Headers: headers})
					}
					moved := 0
					for range 20 {
						ctx, cancel := context.WithCancel(t.Context())
						if c.o.Progress != nil {
							o.Progress = func(inspect.RequeueReport) { cancel() }
						}
						r, err := inspect.Requeue(ctx, cl.Client, o)
						if err != nil && ctx.Err() == nil && !errors.Is(err, errNoDatabase) {
							t.Fatalf("Requeue: got %v, %+v, want no error other than errNoDatabase", err, r)
						}
						cancel()
						moved += r.Moved
						for _, id := range m.IDs("q") {
							m.Publish("", "dead", amqp.Publishing{MessageId: id})
						}
						_, _ = m.Channel().QueuePurge("q", false)
					}
					inmemory.After(time.Second)
					there := map[string]bool{}
					for _, id := range m.IDs("dead") {
						there[id] = true
					}
					if len(there) != 10 {
						t.Errorf("the queue has the messages %v, want all 10", there)
					}
					if moves := c.moves && version != "4.3.0"; moves != (moved > 0) {
						t.Errorf("%d messages were moved to the end of the queue, want any moved: %t", moved, moves)
					}
				})
			})
		}
	}
}

// Large messages are received in small batches, so that they fit into memory.
func TestRequeueOfLongMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("q", nil)
		m.Declare("dead", amqp.Table{"x-queue-type": "quorum"})
		body := make([]byte, 4<<20)
		for i := range 20 {
			m.Publish("", "dead", amqp.Publishing{MessageId: fmt.Sprint(i), Body: body})
		}
		inmemory.After(time.Second)
		most := 0
		r := c.requeue(inspect.RequeueOptions{Queue: "dead", To: topology.Destination{Queue: "q"}, Progress: func(inspect.RequeueReport) {
			most = max(most, m.State("dead").Unacked)
		}})
		if r.Sent != 20 || most > 8 {
			t.Errorf("Requeue left up to %d messages of 4 MiB unacknowledged and sent %d messages, want at most 8, and 20: %+v", most, r.Sent, r)
		}
	})
}

// A dry run does not check the same destination again for each message.
func TestRequeueDryRunAsksOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("q", nil)
		m.Declare("dead", amqp.Table{"x-queue-type": "quorum"})
		for i := range 100 {
			m.Publish("", "dead", amqp.Publishing{MessageId: fmt.Sprint(i)})
		}
		before := m.Calls("queue.declare")
		if r := c.requeue(inspect.RequeueOptions{Queue: "dead", To: topology.Destination{Queue: "q"}, DryRun: true}); r.Sent != 100 {
			t.Errorf("dry run of Requeue: got %+v, want Sent = 100", r)
		}
		if n := m.Calls("queue.declare") - before; n > 10 {
			t.Errorf("the dry run made %d declarations, want at most 10", n)
		}
	})
}

// A dry run refuses a queue with an unknown delivery limit, because reading its messages would use up a delivery or
// change the queue.
func TestRequeueDryRunNeedsTheLimit(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("classic", amqp.Table{"x-queue-type": "classic"})
		m.Declare("quorum", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		for _, queue := range []string{"classic", "quorum"} {
			m.Publish("", queue, amqp.Publishing{MessageId: "1"})
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
			{"quorum", managed(t, limit+`}`), "try again in 10 s"}, // the management API has no data about the queue yet
			{"quorum", managed(t, limit+`, "effective_policy_definition": []}`), ""},
			{"quorum", managed(t, limit+`, "effective_policy_definition": {}}`), ""},
		} {
			_, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: x.queue, DryRun: true, Management: x.m})
			if errors.Is(err, inspect.ErrPeek) != (x.why != "") || err != nil && !strings.Contains(err.Error(), x.why) {
				t.Errorf(`dry run on the queue %s: got %v, want ErrPeek with %q ("" means no ErrPeek)`, x.queue, err, x.why)
			}
		}
	})
}

// Messages that are not dead letters stay in their queue.
func TestRequeueOfMessagesThatAreNotDead(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{ID: "1", Queue: "q"}, amqpx.Message{ID: "2", Queue: "q", Delay: time.Second})
		inmemory.After(time.Minute)
		r := c.requeue(inspect.RequeueOptions{Queue: "q"})
		wantCounts(t, r, "2 total, 2 examined, 2 chosen: 0 sent, 0 revived, 0 removed, 2 stayed; 0 again, 0 moved")
		m.Holds("q", 2, 0)
	})
}

func TestRequeueRefuses(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		for _, o := range []inspect.RequeueOptions{
			{}, {Queue: "delay.bucket.1s"}, {Queue: "q", InFlight: -1}, {Queue: "q", InFlight: 1001}, {Queue: "q", Limit: -1}, {Queue: "q", Rate: -1},
			{Queue: "q", To: topology.Destination{Queue: "q"}}, {Queue: "q", To: topology.Destination{Queue: "delay.parked"}},
			{Queue: "q", Filter: inspect.DeadLetterFilter{OlderThan: -1}},
			{Queue: "q", Filter: inspect.DeadLetterFilter{OlderThan: 30}}, {Queue: "q", Filter: inspect.DeadLetterFilter{NewerThan: 30}},
		} {
			if _, err := inspect.Requeue(t.Context(), c.Client, o); !errors.Is(err, amqpx.ErrConfig) {
				t.Errorf("Requeue with %+v: got %v, want amqpx.ErrConfig", o, err)
			}
		}
		_, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "nowhere"})
		if ae, ok := errors.AsType[*amqp.Error](err); !ok || ae.Code != amqp.NotFound {
			t.Errorf("Requeue from a queue that does not exist: got %v, want an *amqp.Error with code 404", err)
		}
	})
}

// If the broker blocks publishers, the run stops with an error and loses no message.
func TestRequeueWhileBlocked(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 3)
		for _, other := range []string{"q2", "q3", "q4"} { // messages for these queues are blocked as well
			m.Declare(other, nil)
			m.Publish("", "q.dead", amqp.Publishing{Headers: amqp.Table{amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: other}})
		}
		// The broker blocks the connection while it is reading the first message, before the client knows about it.
		m.Delay("basic.publish", "", time.Minute)
		time.AfterFunc(time.Second, func() { m.Block("memory") })
		began := time.Now()
		r, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q.dead"})
		if took := time.Since(began); !errors.Is(err, amqpx.ErrBlocked) || took > 15*time.Second {
			t.Errorf("Requeue while publishers are blocked: got %v after %v with the report %+v, want ErrBlocked after at most 15s", err, took, r)
		}
		m.Unblock()
		inmemory.After(time.Minute)
		if n := m.State("q.dead").Ready; n != 6 {
			t.Errorf("%d dead letters are left, want 6", n)
		}
	})
}

// No matter when the run is interrupted, no message is lost, and at most one is duplicated.
func TestRequeueInterrupted(t *testing.T) {
	for _, method := range []string{"basic.publish", "basic.ack", "basic.consume", "basic.cancel", "basic.nack", "basic.qos", "basic.get"} {
		for n, reached := 1, true; reached && n <= 12; n++ {
			t.Run(fmt.Sprintf("%s %d", method, n), func(t *testing.T) {
				inMemory(t, func(t *testing.T, m *memory) {
					c := m.open(amqpx.Config{})
					c.bury("q", 10)
					before := m.Calls(method)
					undo := m.CutAt(method, n)
					_, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q.dead"})
					undo()
					reached = m.Calls(method)-before >= n-1 // the call that was cut off is not counted
					inmemory.After(time.Minute)
					there := map[string]int{}
					for _, id := range append(m.IDs("q"), m.IDs("q.dead")...) {
						there[id]++
					}
					twice := 0
					for _, n := range there {
						twice += n - 1
					}
					if len(there) != 10 || twice > 1 {
						t.Errorf("after an interrupted Requeue: got %d different messages and %d duplicates in the queues, want 10 and at most 1; Requeue returned %v", len(there), twice, err)
					}
				})
			})
		}
	}
}

// Requeue returns even if the broker does not confirm that its channel is closed.
func TestRequeueEndsWithoutAnAnswerToClose(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 1)
		m.Control(func(f amqptest.Frame) amqptest.Action {
			return amqptest.Action{Drop: f.Method == "channel.close-ok" && strings.HasSuffix(f.Connection, " consume")}
		})
		ended := make(chan error, 1)
		go func() {
			_, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q.dead"})
			ended <- err
		}()
		inmemory.After(time.Minute)
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("Requeue has not returned after a minute, want it not to wait until its channel is closed")
			m.CutConnections()
		}
		m.Holds("q", 1, 0)
	})
}

// A copy at the end of a queue is not also routed to the queues in the message's old CC header.
func TestRequeueCopiesToTheQueueAlone(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("other", nil)
		m.Declare("theirs", amqp.Table{"x-queue-type": "quorum"})
		foreign := amqp.Publishing{MessageId: "1", Headers: amqp.Table{"CC": []any{"other"}, "mine": "kept"}}
		m.Publish("", "theirs", foreign) // arrives like a message that was dead-lettered without a new routing key
		stop := c.consume("q", rejects)
		m.Publish("", "q", foreign)
		inmemory.After(time.Second)
		stop()
		m.Holds("other", 2, 0)
		for _, queue := range []string{"theirs", "q.dead"} {
			r, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: queue, Filter: inspect.DeadLetterFilter{IDs: []string{"none"}}})
			if err != nil || r.Moved != 1 {
				t.Fatalf("Requeue from %s with a filter that matches nothing: got %v, %+v, want no error and Moved = 1", queue, err, r)
			}
			m.Holds(queue, 1, 0)
			m.Holds("other", 2, 0)
			raw, _, err := m.Channel().Get(queue, true)
			if err != nil {
				t.Fatalf("basic.get from %s: got %v, want no error", queue, err)
			}
			d := inspect.ReadDeadLetter(raw, queue, "delay")
			if cc, _ := d.Headers["CC"].([]any); len(cc) != 1 || cc[0] != "other" || d.Headers["mine"] != "kept" {
				t.Errorf(`from %s: got the headers %v, want CC with only "other", and mine = "kept"`, queue, d.Headers)
			}
		}
	})
}

// If the broker does not accept the copy of a message, the message stays, and Requeue returns the broker's error.
func TestRequeueWithoutACopy(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(*memory) func()
		want  string
	}{
		"returned": {func(m *memory) func() { return m.Return("theirs") }, "NO_ROUTE"},
		"nacked":   {func(m *memory) func() { return m.Nack("theirs") }, amqpx.ErrNacked.Error()},
		"closed":   {func(m *memory) func() { return m.Deny("", amqptest.PermissionWrite, "^amq.default$") }, "ACCESS_REFUSED"},
		"cut":      {func(m *memory) func() { return m.CutAt("basic.publish", 1) }, "connection lost before the confirm"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
				cl := m.open(amqpx.Config{})
				m.Declare("theirs", amqp.Table{"x-queue-type": "quorum"})
				m.Publish("", "theirs", amqp.Publishing{MessageId: "1"})
				undo := c.fault(m)
				_, err := inspect.Requeue(t.Context(), cl.Client, inspect.RequeueOptions{Queue: "theirs", Filter: inspect.DeadLetterFilter{IDs: []string{"none"}}})
				if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "%!") {
					t.Errorf("Requeue without a copy: got %v, want an error with %q", err, c.want)
				}
				undo()
				inmemory.After(time.Minute)
				m.Holds("theirs", 1, 0)
			})
		})
	}
}

// Requeue does not trust a user id in a header, because any publisher can write it. A message that is not due yet is
// delayed by the strategy.
func TestRequeueIgnoresUserIDsInHeaders(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.consume("q", rejects)()
		m.Publish("", "q.dead", amqp.Publishing{MessageId: "1", Headers: amqp.Table{
			amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: "q", amqpx.HeaderDue: time.Now().Add(time.Minute).UnixMilli(),
			header.Carried: amqp.Table{"user-id": "root"},
		}})
		if r := c.requeue(inspect.RequeueOptions{Queue: "q.dead"}); r.Sent != 1 {
			t.Fatalf("Requeue of a message with a user ID in its headers: got %+v, want Sent = 1", r)
		}
		var got collector
		stop := c.consume("q", got.handle)
		inmemory.After(time.Hour)
		stop()
		if all := got.all(); len(all) != 1 {
			t.Errorf("%d messages arrived, want 1", len(all))
		} else if all[0].UserID != "" {
			t.Errorf("the message arrived with the user id %q, want none", all[0].UserID)
		}
	})
}
