package trace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// empty is a management API that lists all objects. At first it has no message counts. Later it counts all queues as
// empty, except those in the field leaving.
type empty struct {
	topology.Topology

	leaving map[string]int // numbers of messages that are not ready, because the broker is dead-lettering them
	since   time.Time
	counts  time.Duration // how long after since the counts appear; never if 0
}

func (e empty) RoundTrip(r *http.Request) (*http.Response, error) {
	list := []map[string]any{}
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/api/queues/"):
		for _, q := range e.Queues {
			list = append(list, map[string]any{"name": q.Name, "type": "quorum", "durable": true, "arguments": q.Table()})
			if e.counts > 0 && time.Since(e.since) >= e.counts {
				n := e.leaving[q.Name]
				list[len(list)-1]["messages"], list[len(list)-1]["messages_ready"], list[len(list)-1]["messages_dlx"] = n, 0, n
			}
		}
	case strings.HasPrefix(path, "/api/exchanges/"):
		for _, x := range e.Exchanges {
			list = append(list, map[string]any{"name": x.Name, "type": x.Kind, "durable": true, "arguments": x.Table()})
		}
	case strings.HasPrefix(path, "/api/bindings/"):
		for _, b := range e.Bindings {
			kind := "queue"
			if b.ToExchange != "" {
				kind = "exchange"
			}
			list = append(list, map[string]any{"source": b.Exchange, "destination": b.Queue + b.ToExchange, "destination_type": kind, "routing_key": b.RoutingKey})
		}
	}
	body, err := json.Marshal(list)
	if strings.HasPrefix(r.URL.Path, "/api/overview") {
		body = []byte("{}")
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, err
}

// Take also searches queues that the management API has not counted yet. Only if it has searched all queues does it
// report that the broker does not have a message.
func TestTakeLooksForItself(t *testing.T) {
	hour, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	q := topology.Destination{Queue: "q"}
	want := hour.Topology()
	want.Destinations, want.Bindings = []topology.Destination{q}, append(want.Bindings, hour.Bindings(q)...)
	want = want.WithDestinationQueues("delay", topology.Quorum)
	put := func(queue string, ids ...string) func(*testing.T, *amqp.Channel) {
		return func(t *testing.T, ch *amqp.Channel) {
			t.Helper()
			for _, id := range ids {
				if err := ch.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{MessageId: id}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		spoil      func(*testing.T, *amqp.Channel)
		uncounted  bool // the management API never counts
		why        string
		everywhere bool
		searched   trace.Searched // the search of the dead-letter queue
	}{
		"nothing": {
			func(*testing.T, *amqp.Channel) {}, false, "nothing is known about this id; a consumer may hold it", true,
			trace.Searched{Queue: "q.dead"},
		},
		"parked a moment ago": {put("delay.parked", "other", "it"), false, "it is parked in delay.parked", true, trace.Searched{Queue: "q.dead"}},
		"died a moment ago":   {put("q.dead", "other", "it"), false, "it is a dead letter in q.dead", true, trace.Searched{Queue: "q.dead", Sampled: 2, Messages: 2}},
		"delayed a moment ago": {
			put("delay.bucket.r2-1h.1h", "it"), false,
			"it may be among the messages of the delay queue delay.bucket.r2-1h.1h", false,
			trace.Searched{Queue: "q.dead"},
		},
		"due a moment ago": {put("q", "it"), false, "it may be among the messages of the queue q, which is not searched", false, trace.Searched{Queue: "q.dead"}},
		"beyond the limit": {
			put("q.dead", "1", "2", "3", "it"), false, "nothing is known about this id in the parts that could be inspected", false,
			trace.Searched{Queue: "q.dead", Sampled: 3, Messages: 4},
		},
		"never counted": {
			func(*testing.T, *amqp.Channel) {}, true, "nothing is known about this id in the parts that could be inspected", false,
			trace.Searched{Queue: "q.dead", ReadyOnly: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{Version: "4.3.0"})
				defer srv.Close()
				conn, err := srv.Connect()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), want, live.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				ch, err := conn.Channel()
				if err != nil {
					t.Fatal(err)
				}
				c.spoil(t, ch)
				synctest.Wait()
				counting := empty{Topology: want, since: time.Now(), counts: 5 * time.Second}
				if c.uncounted {
					counting.counts = 0
				}
				m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: counting})
				if err != nil {
					t.Fatal(err)
				}
				src := status.Source{
					Want: doctor.Config{Want: want}, Peek: 3,
					Broker: snapshot.Source{Management: m, Dial: func(ctx context.Context) (*amqp.Connection, error) {
						return inspect.Dial(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
					}},
				}
				got, err := trace.Take(t.Context(), "it", trace.Source{Status: src})
				if err != nil || got.Complete() == c.uncounted {
					t.Fatalf("Take: got error %v and the unchecked areas %v, want no error and an incomplete trace: %t", err, got.Unchecked, c.uncounted)
				}
				if !strings.Contains(got.Why, c.why) || got.Everywhere() != c.everywhere || got.Found() != (len(got.DeadLetters) == 1) {
					t.Errorf("got Everywhere = %t, Found = %t and Why = %q, want %t, Found only with a dead letter, and %q in Why", got.Everywhere(), got.Found(), got.Why, c.everywhere, c.why)
				}
				page, err := status.Take(t.Context(), src)
				if err != nil {
					t.Fatal(err)
				}
				dead := page.Destinations[0].Dead.Messages
				told := slices.ContainsFunc(page.Findings, func(f doctor.Finding) bool {
					return f.What == fmt.Sprintf("Dead letters are waiting: %d in q.dead.", dead)
				})
				if dead != c.searched.Messages || told != (dead > 0) {
					t.Errorf("the status has %d dead letters and the findings %+v, want %d dead letters, and a finding if there are any",
						dead, page.Findings, c.searched.Messages)
				}
				for _, s := range got.Searched {
					if s.Queue == "q.dead" && s != c.searched {
						t.Errorf("the search of q.dead: got %+v, want %+v", s, c.searched)
					}
				}
			})
		})
	}
}

// If a message waits in the route queue of an exchange destination that the file does not list, the trace names this
// queue.
func TestTakeNamesAnUnlistedRouteQueue(t *testing.T) {
	hour, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	const route = "delay.route.events:order.expired"
	listed := hour.Topology()
	there := listed
	events := topology.Destination{Exchange: "events", RoutingKey: "order.expired"}
	there.Destinations, there.Bindings = []topology.Destination{events}, append(slices.Clone(there.Bindings), hour.Bindings(events)...)
	there = there.WithDestinationQueues("delay", topology.Quorum)
	for name, c := range map[string]struct {
		leaving  int
		why      string
		stuck    int // number of messages in the route queue
		searched trace.Searched
	}{
		"the exchange routes it nowhere": {
			1, "it may be among the messages of the route queue " + route + ", for which the exchange has no route", 1,
			trace.Searched{Queue: route, Messages: 1},
		},
		"nothing waits": {0, "nothing is known about this id; a consumer may hold it", 0, trace.Searched{Queue: route}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{Version: "4.3.0"})
				defer srv.Close()
				conn, err := srv.Connect()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), there, live.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: empty{
					Topology: there, leaving: map[string]int{route: c.leaving}, since: time.Now(), counts: time.Nanosecond,
				}})
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Second)
				got, err := trace.Take(t.Context(), "it", trace.Source{Queues: []string{route}, Status: status.Source{
					Want: doctor.Config{Want: listed},
					Broker: snapshot.Source{Management: m, Dial: func(ctx context.Context) (*amqp.Connection, error) {
						return inspect.Dial(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
					}},
				}})
				if err != nil || !got.Complete() {
					t.Fatalf("Take: got error %v and the unchecked areas %v, want no error and a complete trace", err, got.Unchecked)
				}
				var stuck int64
				for _, d := range got.Stuck {
					stuck += d.Waiting.Total()
				}
				if !strings.Contains(got.Why, c.why) || stuck != int64(c.stuck) || len(got.Unsearched) > 0 || !slices.Contains(got.Searched, c.searched) {
					t.Errorf("got Why = %q, %d stuck messages, Unsearched = %q and Searched = %+v, want %q in Why, %d stuck messages, Unsearched = [] and %+v in Searched",
						got.Why, stuck, got.Unsearched, got.Searched, c.why, c.stuck, c.searched)
				}
			})
		})
	}
}
