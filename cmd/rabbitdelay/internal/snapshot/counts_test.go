package snapshot

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// older is a management API whose counts change after 5 s.
type older struct {
	since         time.Time
	before, after string
	consumers     string
}

func (o older) RoundTrip(r *http.Request) (*http.Response, error) {
	body := o.before
	switch {
	case strings.Contains(r.URL.Path, "/consumers/"):
		body = o.consumers
	case time.Since(o.since) >= 5*time.Second:
		body = o.after
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func counted(ready, unacked int) string {
	return fmt.Sprintf(`{"name":"q.dead","type":"TYPE","messages":%d,"messages_ready":%d,"messages_unacknowledged":%d}`, ready+unacked, ready, unacked)
}

// The number of dead letters is read over AMQP, because it is current. Only the management API reports how many of them
// are unacknowledged.
func TestCounts(t *testing.T) {
	const nobody, requeue, service = "[]", `[{"queue":{"name":"q.dead"},"consumer_tag":"requeue-000000"}]`, `[{"queue":{"name":"q.dead"},"consumer_tag":"c"}]`
	for name, c := range map[string]struct {
		kind          topology.QueueType
		ready, held   int    // messages at the broker
		tag           string // the tag of the consumer that holds them
		before, after string // counts of the management API
		consumers     string
		hasty         bool
		want          string // messages, unacknowledged, consumers, and whether that is a lower limit
		within        time.Duration
	}{
		"as they were":                    {"quorum", 3, 0, "", counted(3, 0), counted(3, 0), nobody, false, "3 0 0", 0},
		"died a moment ago":               {"quorum", 3, 0, "", counted(0, 0), counted(3, 0), nobody, false, "3 0 0", 0},
		"sent back a moment ago":          {"quorum", 0, 0, "", counted(3, 0), counted(0, 0), nobody, false, "0 0 0", 0},
		"sent back, and still counted":    {"quorum", 0, 0, "", counted(0, 3), counted(0, 0), nobody, false, "0 0 0", 0},
		"some sent back":                  {"quorum", 2, 0, "", counted(0, 3), counted(2, 0), nobody, false, "2 0 0", 0},
		"sent back out of a classic one":  {"classic", 0, 0, "", counted(3, 0), counted(0, 0), nobody, false, "0 0 0", 6 * time.Second},
		"the same, for a page":            {"classic", 0, 0, "", counted(0, 3), counted(0, 0), nobody, true, "3 3 0 or more", 0},
		"gone or taken, for a page":       {"classic", 0, 0, "", counted(3, 0), counted(0, 0), nobody, true, "0 0 0 or more", 0},
		"taken by requeue, for a page":    {"quorum", 0, 3, "requeue-000000", counted(3, 0), counted(0, 3), requeue, true, "0 0 0 or more", 0},
		"as they were, for a page":        {"quorum", 3, 0, "", counted(3, 0), counted(3, 0), nobody, true, "3 0 0", 0},
		"none, for a page":                {"quorum", 0, 0, "", counted(0, 0), counted(0, 0), nobody, true, "0 0 0", 0},
		"sent back, for a page":           {"quorum", 0, 0, "", counted(3, 0), counted(0, 0), nobody, true, "0 0 0", 0},
		"taken by requeue":                {"quorum", 0, 3, "requeue-000000", counted(3, 0), counted(0, 3), requeue, false, "3 3 0", 6 * time.Second},
		"taken, and nobody saw them come": {"quorum", 0, 3, "requeue-000000", counted(0, 0), counted(0, 3), requeue, false, "3 3 0", 11 * time.Second},
		"taken out of a classic one":      {"classic", 0, 3, "requeue-000000", counted(3, 0), counted(0, 3), requeue, false, "3 3 0", 6 * time.Second},
		"some taken by requeue":           {"quorum", 2, 3, "requeue-000000", counted(5, 0), counted(2, 3), requeue, false, "5 3 0", 6 * time.Second},
		"some taken, for a page":          {"quorum", 2, 3, "requeue-000000", counted(5, 0), counted(2, 3), requeue, true, "2 0 0 or more", 0},
		"some taken and none there":       {"quorum", 2, 0, "", counted(2, 0), counted(2, 0), requeue, false, "2 0 0", 0},
		"with a service":                  {"quorum", 2, 3, "c", counted(2, 3), counted(2, 3), service, false, "5 3 1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{})
				defer srv.Close()
				conn, err := srv.Connect()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				ch, err := conn.Channel()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := ch.QueueDeclare("q.dead", true, false, false, false, amqp.Table{"x-queue-type": string(c.kind)}); err != nil {
					t.Fatal(err)
				}
				for range c.ready + c.held {
					if err := ch.PublishWithContext(t.Context(), "", "q.dead", false, false, amqp.Publishing{}); err != nil {
						t.Fatal(err)
					}
				}
				if c.held > 0 {
					if err := ch.Qos(c.held, 0, false); err != nil {
						t.Fatal(err)
					}
					if _, err := ch.Consume("q.dead", c.tag, false, false, false, false, nil); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				began := time.Now()
				typed := func(s string) string { return strings.Replace(s, "TYPE", string(c.kind), 1) }
				m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: older{began, typed(c.before), typed(c.after), c.consumers}})
				if err != nil {
					t.Fatal(err)
				}
				x := collector{
					cfg: doctor.Config{
						Want:   topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}.WithDestinationQueues("delay", topology.Quorum),
						Prefix: "delay",
					},
					src:  Source{Management: m, Hasty: c.hasty, Now: time.Now, Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }},
					conn: conn, managed: true, visited: map[string]bool{}, older: map[string]int64{},
				}
				q, err := m.Queue(t.Context(), "q.dead")
				if err != nil {
					t.Fatal(err)
				}
				x.snap.Live.Queues = map[string]plan.Queue{"q.dead": *q}
				if err := x.counts(t.Context()); err != nil {
					t.Fatal(err)
				}
				now := x.snap.Live.Queues["q.dead"]
				got := fmt.Sprint(now.Messages, now.Unacked, now.Consumers)
				if now.Partial() {
					got += " or more"
				}
				if got != c.want || time.Since(began) > c.within {
					t.Errorf("got messages, unacknowledged and consumers %s after %v, want %s within %v", got, time.Since(began), c.want, c.within)
				}
			})
		})
	}
}

// outdated is a management API that counts a dead letter of a route queue for 9 s after the message has left.
type outdated struct{ since time.Time }

func (o outdated) RoundTrip(r *http.Request) (*http.Response, error) {
	leaving := 1
	if time.Since(o.since) >= 9*time.Second {
		leaving = 0
	}
	body := fmt.Sprintf(`{"name":"delay.route.events:k","type":"quorum","messages":%d,"messages_ready":0,"messages_unacknowledged":0,"messages_dlx":%d}`, leaving, leaving)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// A message that has left its route queue is not reported, although the management API's counts are up to 10 s old.
func TestCountsOfRouteQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		const name = "delay.route.events:k"
		if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: outdated{time.Now()}})
		if err != nil {
			t.Fatal(err)
		}
		x := collector{
			cfg: doctor.Config{
				Want:   topology.Topology{Destinations: []topology.Destination{{Exchange: "events", RoutingKey: "k"}}}.WithDestinationQueues("delay", topology.Quorum),
				Prefix: "delay",
			},
			src:  Source{Management: m, Now: time.Now, Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }},
			conn: conn, managed: true, visited: map[string]bool{}, older: map[string]int64{},
		}
		q, err := m.Queue(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if q.Messages != 1 {
			t.Fatalf("at first, the management API counts %d messages, want 1", q.Messages)
		}
		x.snap.Live.Queues = map[string]plan.Queue{name: *q}
		if err := x.counts(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := x.snap.Live.Queues[name].Messages; got != 0 {
			t.Errorf("the route queue has %d messages, want 0", got)
		}
	})
}

// A queue whose process has crashed is reported as unavailable, although AMQP counts it as empty and the management API
// shows it as running.
func TestQueueWithoutAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		srv.RefuseMethod("basic.get", "q", amqp.InternalError, "Cannot get a message from queue 'queue 'q' in vhost '/'': noproc")
		running := plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, State: "running", Members: []string{"n1"}, Online: []string{"n1"}}
		x := collector{
			cfg: doctor.Config{Want: topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}, Prefix: "delay"},
			src: Source{Now: time.Now, Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }}, conn: conn,
			managed: true, visited: map[string]bool{}, older: map[string]int64{},
		}
		x.snap.Live.Queues = map[string]plan.Queue{"q": running}
		if err := x.counts(t.Context()); err != nil {
			t.Fatal(err)
		}
		if q := x.snap.Live.Queues["q"]; !strings.Contains(q.Unavailable, "noproc") {
			t.Errorf(`got the queue %+v, want "noproc" in Unavailable`, q)
		}
	})
}
