package status_test

import (
	"context"
	"database/sql"
	"fmt"
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
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A user with read-only permissions sees the waiting messages and no findings about missing permissions. A second call
// of Take reuses the measured clocks.
func TestTakeByAReadOnlyUser(t *testing.T) {
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
			t.Fatalf("got error %v and %+v, want no error and the broker's part", err, s)
		}
		if slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return strings.HasPrefix(f.ID, "permission-") }) {
			t.Errorf("got the findings %+v, want none about permissions", s.Findings)
		}
		ofClock := func(u doctor.Unchecked) bool { return u.Area == doctor.AreaClock }
		if src.Before != nil && slices.ContainsFunc(s.Unchecked, ofClock) {
			t.Errorf("the second call of Take: got the unchecked areas %+v, want no clock among them", s.Unchecked)
		}
		if notes := strings.Join(s.Notes, "\n"); src.Before != nil && strings.Contains(notes, "clock") {
			t.Errorf("the second call of Take: got the notes %s, want none about the clock", notes)
		}
		src.Before = &s
	}
}

// received waits until the broker has received what was published to the queue on the channel.
func received(t *testing.T, ch *amqp.Channel, queue string) {
	t.Helper()
	if _, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
}

// The counts of a queue that the user may not see, which RabbitMQ hides since 4.3, are unknown and not 0.
func TestTakeOfHiddenObjects(t *testing.T) {
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
		received(t, ch, q.Name)
	}
	for _, p := range []amqptest.Permission{amqptest.PermissionConfigure, amqptest.PermissionWrite, amqptest.PermissionRead} {
		srv.Deny("", p, "^[^a]")
	}
	s, err := status.Take(t.Context(), status.Source{
		Want:   doctor.Config{Want: want},
		Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }},
	})
	if err != nil || len(s.Destinations) != 1 || s.Destinations[0].Dead == nil {
		t.Fatalf("got error %v and %+v, want no error and one destination with its dead letters", err, s)
	}
	if d := s.Destinations[0]; !d.Waiting.Unknown || !d.Dead.Unknown || d.Unconsumed() {
		t.Errorf("got %+v with the dead letters %+v, want both unknown, and Unconsumed = false", d, d.Dead)
	}
}

// Times are in UTC, as in all other JSON, regardless of the process's time zone.
func TestTakeInUTC(t *testing.T) {
	srv := inmemory.New(t, amqptest.Options{})
	ch := srv.Channel()
	for _, q := range []string{"q", "q.dead"} {
		if _, err := ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatalf("queue %s: %v", q, err)
		}
	}
	if err := ch.PublishWithContext(t.Context(), "", "q.dead", false, false, amqp.Publishing{Timestamp: time.Now()}); err != nil {
		t.Fatal(err)
	}
	received(t, ch, "q.dead")
	db, err := sql.Open("sqlite", t.TempDir()+"/tasks.db")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	tasks, err := taskview.New(db, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := tasks.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "late", Queue: "q", DeliverAt: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(),
		"INSERT INTO rabbitdelay_relays (id, name, version, started_at, seen_at) VALUES ('x', 'host:1', '', 1, 1)"); err != nil {
		t.Fatal(err)
	}
	s, err := status.Take(t.Context(), status.Source{
		Want: doctor.Config{
			Want: topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum),
		},
		Broker: snapshot.Source{Dial: func(ctx context.Context) (*amqp.Connection, error) {
			return inspect.Dial(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		}},
		Tasks: tasks, Peek: 1,
	})
	switch {
	case err != nil:
		t.Fatal(err)
	case s.Tasks == nil:
		t.Fatalf("got %+v, want Tasks to be set", s)
	case s.Tasks.Overdue == nil:
		t.Fatalf("got %+v, want Overdue to be set", s.Tasks)
	case len(s.Tasks.Relays) != 1:
		t.Fatalf("got %d relays, want 1: %+v", len(s.Tasks.Relays), s.Tasks.Relays)
	case len(s.Destinations) != 1:
		t.Fatalf("got %d destinations, want 1: %+v", len(s.Destinations), s.Destinations)
	case s.Destinations[0].Dead == nil:
		t.Fatalf("got %+v, want Dead to be set", s.Destinations[0])
	case s.Destinations[0].Dead.Oldest == nil:
		t.Fatalf("got %+v, want Oldest to be set", s.Destinations[0].Dead)
	}
	for name, at := range map[string]time.Time{
		"at": s.At, "due": s.Tasks.Overdue.Due, "oldest": *s.Destinations[0].Dead.Oldest, "started": s.Tasks.Relays[0].Started, "seen": s.Tasks.Relays[0].Seen,
	} {
		if at.Location() != time.UTC {
			t.Errorf("time %s is %v, want it in UTC", name, at)
		}
	}
}

// oneDelay is a management API with one delay queue.
type oneDelay struct{}

func (oneDelay) RoundTrip(r *http.Request) (*http.Response, error) {
	body := "[]"
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/queues/"):
		body = `[{"name":"delay.ttl.1m","type":"quorum","durable":true,"arguments":{"x-message-ttl":60000,"x-dead-letter-exchange":"delay.deliver"},"messages":1,"messages_ready":1}]`
	case strings.HasPrefix(r.URL.Path, "/api/overview"):
		body = "{}"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// Repeated calls of Take find a delay queue that keeps its messages, whatever its TTL, without waiting for the TTL.
func TestTakeAgainFindsStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := inmemory.New(t, amqptest.Options{})
		ch := srv.Channel()
		// The queue has no TTL, so it keeps its messages, although the management API reports a TTL.
		if _, err := ch.QueueDeclare("delay.ttl.1m", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		if err := ch.PublishWithContext(t.Context(), "", "delay.ttl.1m", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // waits until the broker has received the message
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
				t.Fatalf("Take: got error %v after %v, want no error after at most 1s", err, time.Since(at))
			}
			found := slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return f.ID == "delay-standstill" })
			if after := time.Since(began); found && after < 2*time.Minute || !found && after > 150*time.Second {
				t.Errorf("%v after the start: standstill found = %t, want false before 2m and true after 2m30s", after, found)
			}
			src.Before = &s
			<-time.After(5 * time.Second)
		}
	})
}

// wiped is the management API of a virtual host with one delay queue. The queue is reported as empty until request
// number later for it, or always if later is 0.
type wiped struct{ looks, later int }

func (w *wiped) RoundTrip(r *http.Request) (*http.Response, error) {
	body := "[]"
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/queues/"):
		w.looks++
		n := 0
		if w.later > 0 && w.looks >= w.later {
			n = 2
		}
		body = fmt.Sprintf(`[{"name":"delay.ttl.1h","type":"classic","state":"running","messages":%d,"messages_ready":%[1]d,"messages_unacknowledged":0,"durable":true,`+
			`"arguments":{"x-message-ttl":3600000,"x-dead-letter-exchange":"delay.deliver"}}]`, n)
	case strings.HasPrefix(r.URL.Path, "/api/overview"):
		body = "{}"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// After a virtual host was wiped, the tasks that had been sent to it are reported as missing their messages. Take
// counts several times before it reports this, because a message may be in transit between two queues.
func TestTakeFindsTasksWithoutMessage(t *testing.T) {
	for name, c := range map[string]struct {
		later   int // the number of the inspection that finds messages
		missing int64
	}{
		"wiped":              {0, 2},
		"counted in transit": {2, 0},
		"counted":            {1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := inmemory.New(t, amqptest.Options{})
				api := &wiped{later: c.later}
				m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: api})
				if err != nil {
					t.Fatal(err)
				}
				src := status.Source{Tasks: sentTasks(t), Broker: snapshot.Source{
					Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }, Management: m, SkipClock: true,
				}}
				first, err := status.Take(t.Context(), src)
				if err != nil || first.Tasks == nil || first.Tasks.Sent == nil {
					t.Fatalf("got error %v and %+v, want no error and a count of sent tasks", err, first.Tasks)
				}
				if s := first.Tasks.Sent; s.Tasks != 2 || s.Missing == nil || *s.Missing != c.missing {
					t.Errorf("sent tasks: got %+v, want Tasks = 2 and Missing = %d", s, c.missing)
				}
				src.Before = &first
				again, err := status.Take(t.Context(), src)
				if err != nil {
					t.Fatal(err)
				}
				found := slices.ContainsFunc(again.Findings, func(f doctor.Finding) bool { return f.ID == "tasks-without-message" })
				if found != (c.missing > 0) || again.Empty() != found {
					t.Errorf("got tasks-without-message = %t and Empty = %t, want the finding if messages are missing (%t), and Empty in the same cases",
						found, again.Empty(), c.missing > 0)
				}
			})
		})
	}
}

// sentTasks returns a store with two tasks that were sent an hour ago and are due in an hour.
func sentTasks(t *testing.T) *taskview.Store {
	t.Helper()
	db, err := sql.Open("sqlite", t.TempDir()+"/tasks.db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	store, err := taskview.New(db, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if err := store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: "q", DeliverAt: time.Now().Add(time.Hour)}); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	const hour = 3_600_000
	_, err = db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET sends = 1, sent_at = due_at - ?, resend_at = due_at + 120000", 2*hour)
	if err != nil {
		t.Fatal(err)
	}
	return store
}
