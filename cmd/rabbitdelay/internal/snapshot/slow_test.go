package snapshot

import (
	"context"
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
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// slowly is a management API that answers slowly.
type slowly time.Duration

func (s slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(time.Duration(s)):
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	body := "[]"
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/overview"):
		body = `{"node":"rabbit@a"}`
	case strings.HasPrefix(r.URL.Path, "/api/nodes"):
		body = `[{"name":"rabbit@a","running":true}]`
	case strings.HasPrefix(r.URL.Path, "/api/queues/"):
		body = `[{"name":"q.dead","type":"classic","messages":3,"messages_ready":3}]`
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// Dead letters are counted within 10 s. If the management API is too slow for that, they are counted over AMQP.
func TestSlowManagement(t *testing.T) {
	for answer, source := range map[time.Duration]string{0: "management API", 3 * time.Second: "management API", 8 * time.Second: "AMQP", time.Hour: "AMQP"} {
		t.Run(answer.String(), func(t *testing.T) {
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
				for _, q := range []string{"q", "q.dead"} {
					if _, err := ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "classic"}); err != nil {
						t.Fatalf("queue %s: %v", q, err)
					}
				}
				for range 3 {
					if err := ch.PublishWithContext(t.Context(), "", "q.dead", false, false, amqp.Publishing{}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait() // waits until the broker has received the messages
				m, err := live.NewManagement(live.ManagementConfig{URL: "http://broker.test:15672", Transport: slowly(answer)})
				if err != nil {
					t.Fatal(err)
				}
				want := topology.Topology{
					Queues:       []topology.Queue{{Name: "q", Type: topology.Classic}, {Name: "q.dead", Type: topology.Classic}},
					Destinations: []topology.Destination{{Queue: "q"}},
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // in virtual time
				defer cancel()
				began := time.Now()
				snap, err := Take(ctx, doctor.Config{Want: want, Roles: []doctor.Role{}}, Source{
					Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }, Management: m, Hasty: true,
				})
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); answer == 3*time.Second && took > 5*time.Second {
					t.Errorf("Take: took %v, want less than two answers, because the requests do not wait for each other", took)
				}
				if n := snap.Live.Queues["q.dead"].Messages; n != 3 {
					t.Errorf("got %d dead letters, want 3", n)
				}
				if snap.Live.Source != source {
					t.Errorf("got the source %s, want %s; unchecked areas: %v", snap.Live.Source, source, snap.Unchecked)
				}
			})
		})
	}
}
