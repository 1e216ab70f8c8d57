package status_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/hung"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If the database accepts connections but does not answer, it is reported as unchecked after a few seconds, and the
// status contains the broker's part.
func TestTakeWithAHungDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		store, err := taskview.New(hung.DB(t), schedule.Config{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s, err := status.Take(t.Context(), status.Source{
			Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }, SkipClock: true},
			Tasks:  store,
		})
		if err != nil || s.Broker == nil || s.Tasks != nil {
			t.Fatalf("got error %v and %+v, want no error, the broker's part and no tasks", err, s)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Take returned after %v, want at most 5s", took)
		}
		why := ""
		for _, u := range s.Unchecked {
			if u.Area == doctor.AreaDatabase {
				why = u.Why
			}
		}
		if !strings.Contains(why, "the database has not answered within 3s") {
			t.Errorf(`got the unchecked areas %+v, want the reason "the database has not answered within 3s" in them`, s.Unchecked)
		}
	})
}

// silent is a management API that accepts requests but does not answer.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// A management API that does not answer delays the status by only a few seconds, regardless of the number of queues
// with dead letters. The dead letters are counted and read over AMQP.
func TestTakeBesideAHungManagementAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{Version: "4.3.0"})
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
		var want topology.Topology
		for _, q := range []string{"a", "b", "c", "d"} {
			want.Destinations = append(want.Destinations, topology.Destination{Queue: q})
			for _, name := range []string{q, q + ".dead"} {
				if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if err := ch.PublishWithContext(t.Context(), "", q+".dead", false, false, amqp.Publishing{}); err != nil {
				t.Fatalf("queue %s: %v", q, err)
			}
		}
		synctest.Wait()
		m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: silent{}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s, err := status.Take(t.Context(), status.Source{
			Want: doctor.Config{Want: want.WithDestinationQueues("delay", topology.Quorum)}, Peek: 5,
			Broker: snapshot.Source{Management: m, SkipClock: true, Dial: func(ctx context.Context) (*amqp.Connection, error) {
				return inspect.Dial(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
			}},
		})
		if took := time.Since(began); err != nil || took > 10*time.Second {
			t.Fatalf("Take: got error %v after %v, want no error after at most 10s", err, took)
		}
		for _, d := range s.Destinations {
			if d.Dead == nil || d.Dead.Messages != 1 || d.Dead.Sampled != 1 || d.Dead.Held != nil {
				t.Errorf("destination %s: got %+v, want Messages = 1, Sampled = 1 and Held = nil", d.Name, d.Dead)
			}
		}
		if s.Broker.Managed() || len(s.Destinations) != 4 || s.Complete() {
			t.Errorf("got %+v, want an incomplete status without the management API, with 4 destinations", s)
		}
	})
}
