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
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// young is a management API that lists queues which were just declared. Their counts are missing at first, and are
// missing forever if counts is 0. Afterwards, each queue has one message that is ready and one that is not.
type young struct {
	since    time.Time
	counts   time.Duration
	queues   []string
	disabled bool // the broker's configuration disables statistics
}

func (y young) RoundTrip(r *http.Request) (*http.Response, error) {
	body := "[]"
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/overview"):
		body = fmt.Sprintf(`{"disable_stats":%t}`, y.disabled)
	case strings.HasPrefix(r.URL.Path, "/api/queues/"):
		counts := ""
		if y.counts > 0 && time.Since(y.since) >= y.counts {
			counts = `,"messages":2,"messages_ready":1,"messages_unacknowledged":1`
		}
		var list []string
		for _, q := range y.queues {
			list = append(list, fmt.Sprintf(`{"name":%q,"type":"quorum","durable":true,"arguments":{"x-message-ttl":60000,"x-dead-letter-exchange":"delay.deliver"}%s}`, q, counts))
		}
		body = "[" + strings.Join(list, ",") + "]"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// The management API has no counts for a queue that was just declared. Its ready messages are counted over AMQP, and
// the others remain unknown until the management API has counted them. With Hasty, Take does not wait for that.
func TestUncounted(t *testing.T) {
	for name, c := range map[string]struct {
		counts    time.Duration // when the management API counts
		hasty     bool
		disabled  bool
		known     bool
		unchecked bool
		within    time.Duration
	}{
		"counted":                   {counts: time.Nanosecond, known: true},
		"counted in a few seconds":  {counts: 5 * time.Second, known: true, within: uncountedFor},
		"never counted":             {unchecked: true, within: uncountedFor},
		"disabled":                  {disabled: true, unchecked: true},
		"counted later, for a page": {counts: 5 * time.Second, hasty: true},
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
				queues := []string{"q", "q.dead", "delay.ttl.1m"}
				for _, q := range queues {
					if _, err := ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
						t.Fatal(err)
					}
					if err := ch.PublishWithContext(t.Context(), "", q, false, false, amqp.Publishing{}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				began := time.Now()
				m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: young{began.Add(-time.Nanosecond), c.counts, queues, c.disabled}})
				if err != nil {
					t.Fatal(err)
				}
				want := topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}
				snap, err := Take(t.Context(), doctor.Config{Want: want.WithDestinationQueues("delay", topology.Quorum), Roles: []doctor.Role{}}, Source{
					Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }, Management: m, SkipClock: true, Hasty: c.hasty,
				})
				if took := time.Since(began); err != nil || took > c.within+time.Second {
					t.Fatalf("Take: got error %v after %v, want no error after at most %v", err, took, c.within+time.Second)
				}
				for _, name := range queues {
					q := snap.Live.Queues[name]
					if q.Ready() != 1 || q.Unknown() || q.Partial() == c.known {
						t.Errorf("queue %s: got %d ready messages, Unknown = %t and Partial = %t, want 1, false and the opposite of %t",
							name, q.Ready(), q.Unknown(), q.Partial(), c.known)
					}
				}
				why := ""
				for _, u := range snap.Unchecked {
					if u.Area == doctor.AreaMessages {
						why = u.Why
					}
				}
				if strings.Contains(why, "3, such as delay.ttl.1m, q, q.dead") != c.unchecked {
					t.Errorf("got Unchecked = %v, want the queues without counts in it: %t", snap.Unchecked, c.unchecked)
				}
			})
		})
	}
}
