package status_test

import (
	"context"
	"database/sql"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inmemory"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/snapshot"
)

// Who may only look is told what waits, and not what he may not do; and a second look
// says nothing of the clock, which the first has measured.
func TestTakeByWhoMayOnlyLook(t *testing.T) {
	srv := inmemory.New(t, amqptest.Options{})
	ch := srv.Channel()
	if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	defer srv.Deny("", amqptest.PermissionConfigure, "^[^a]")()
	defer srv.Deny("", amqptest.PermissionWrite, "^[^a]")()
	src := status.Source{
		Want:   doctor.Config{Want: topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}},
		Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }},
	}
	for range 2 {
		s, err := status.Take(t.Context(), src)
		if err != nil || s.Broker == nil {
			t.Fatalf("%v, %+v", err, s)
		}
		if slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return strings.HasPrefix(f.ID, "permission-") }) {
			t.Errorf("findings %+v", s.Findings)
		}
		if src.Before != nil && (slices.ContainsFunc(s.Unseen, func(u doctor.Unseen) bool { return u.Area == doctor.AreaClock }) || strings.Contains(strings.Join(s.Notes, "\n"), "clock")) {
			t.Errorf("the second look: %+v, %v", s.Unseen, s.Notes)
		}
		src.Before = &s
	}
}

// What the user may not look at, which RabbitMQ has hidden since 4.3, is unknown and not empty.
func TestTakeOfWhatIsHidden(t *testing.T) {
	srv := inmemory.New(t, amqptest.Options{Version: "4.3.0"})
	ch := srv.Channel()
	want := topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum)
	for _, q := range want.Queues {
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		if err := ch.PublishWithContext(t.Context(), "", q.Name, false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []amqptest.Permission{amqptest.PermissionConfigure, amqptest.PermissionWrite, amqptest.PermissionRead} {
		srv.Deny("", p, "^[^a]")
	}
	s, err := status.Take(t.Context(), status.Source{
		Want:   doctor.Config{Want: want},
		Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }},
	})
	if err != nil || len(s.Destinations) != 1 || s.Destinations[0].Dead == nil {
		t.Fatalf("%v, %+v", err, s)
	}
	if d := s.Destinations[0]; !d.Waiting.Unknown || !d.Dead.Unknown || d.Unconsumed() {
		t.Errorf("%+v, with dead letters %+v", d, d.Dead)
	}
}

// Instants are in UTC, as in all other JSON, whatever zone the process is in.
func TestTakeInUTC(t *testing.T) {
	srv := inmemory.New(t, amqptest.Options{})
	ch := srv.Channel()
	for _, q := range []string{"q", "q.dead"} {
		if _, err := ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.PublishWithContext(t.Context(), "", "q.dead", false, false, amqp.Publishing{Timestamp: time.Now()}); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", t.TempDir()+"/tasks.db")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := tasks.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "late", Queue: "q", DeliverAt: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_relays (id, name, version, started_at, seen_at) VALUES ('x', 'host:1', '', 1, 1)"); err != nil {
		t.Fatal(err)
	}
	s, err := status.Take(t.Context(), status.Source{
		Want: doctor.Config{Want: topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum)},
		Broker: snapshot.Source{Dial: func(ctx context.Context) (*amqp.Connection, error) {
			return inspect.Dial(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		}},
		Tasks: tasks, Peek: 1,
	})
	if err != nil || s.Tasks == nil || s.Tasks.Overdue == nil || len(s.Tasks.Relays) != 1 || len(s.Destinations) != 1 || s.Destinations[0].Dead == nil || s.Destinations[0].Dead.Oldest == nil {
		t.Fatalf("%v, %+v", err, s)
	}
	for name, at := range map[string]time.Time{
		"at": s.At, "due": s.Tasks.Overdue.Due, "oldest": *s.Destinations[0].Dead.Oldest, "started": s.Tasks.Relays[0].Started, "seen": s.Tasks.Relays[0].Seen,
	} {
		if at.Location() != time.UTC {
			t.Errorf("%s is %v", name, at)
		}
	}
}

// oneDelay is a management API that has one delay queue.
type oneDelay struct{}

func (oneDelay) RoundTrip(r *http.Request) (*http.Response, error) {
	body := "[]"
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/queues/"):
		body = `[{"name":"delay.ttl.1m","type":"quorum","durable":true,"arguments":{"x-message-ttl":60000,"x-dead-letter-exchange":"delay.deliver"}}]`
	case strings.HasPrefix(r.URL.Path, "/api/overview"):
		body = "{}"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// Looks one after another find a delay queue that keeps messages, whatever its TTL, and
// none of them waits for that.
func TestTakeAgainFindsStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := inmemory.New(t, amqptest.Options{})
		ch := srv.Channel()
		// It keeps what it gets, whatever the management API says of its TTL.
		if _, err := ch.QueueDeclare("delay.ttl.1m", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		if err := ch.PublishWithContext(t.Context(), "", "delay.ttl.1m", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the broker has it
		m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: oneDelay{}})
		if err != nil {
			t.Fatal(err)
		}
		src := status.Source{Broker: snapshot.Source{
			Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }, Management: m, SkipClock: true, Watch: time.Second,
		}}
		began := time.Now()
		for time.Since(began) < 3*time.Minute {
			at := time.Now()
			s, err := status.Take(t.Context(), src)
			if err != nil || time.Since(at) > time.Second {
				t.Fatalf("%v, after %v", err, time.Since(at))
			}
			found := slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return f.ID == "delay-standstill" })
			if after := time.Since(began); found && after < 2*time.Minute || !found && after > 150*time.Second {
				t.Errorf("after %v: found is %v", after, found)
			}
			src.Before = &s
			<-time.After(5 * time.Second)
		}
	})
}
