package schedule

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
)

func sentOf(t *testing.T, db *sql.DB, like string) (n int) {
	t.Helper()
	check(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0 AND queue LIKE ?", like).Scan(&n))
	return n
}

// A queue that is exclusive to another connection delays only its own tasks.
func TestExclusiveQueueDelaysNoOther(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		_, err := s.plain.QueueDeclare("owned", false, false, true, false, amqp.Table{})
		check(t, err)
		tasks := []Task{{ID: "bad", Queue: "owned", DeliverAt: time.Now()}}
		for i := range 100 {
			tasks = append(tasks, Task{ID: fmt.Sprint(i), Queue: fmt.Sprintf("good-%d", i%10), DeliverAt: time.Now().Add(time.Minute)})
		}
		check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
		after(5 * time.Second)
		if n := sentOf(t, s.db, "good-%"); n != 100 {
			t.Errorf("%d tasks for other queues were sent within 5s, want 100", n)
		}
	})
}

// A task that another program wrote with an impossible destination fails immediately.
func TestImpossibleDestinationFailsItsTask(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		due := time.Now().UnixMilli()
		_, err := s.db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('bad', 'delay.parked', ?), ('good', 'q', ?)", due, due)
		check(t, err)
		after(3 * time.Second)
		bad, err := s.Get(t.Context(), NoTx, "bad")
		check(t, err)
		if bad.Status != StatusFailed || !strings.HasPrefix(bad.LastError, `bucket strategy: destination queue "delay.parked" belongs to the delay strategies`) {
			t.Errorf(`the task is %s with the error %q, want %s and "bucket strategy: destination queue "delay.parked" belongs to the delay strategies…"`,
				bad.Status, bad.LastError, StatusFailed)
		}
		if n := sentOf(t, s.db, "q"); n != 1 {
			t.Errorf("%d tasks for another queue were sent, want 1", n)
		}
	})
}

// A full queue with many overdue tasks does not delay tasks for other queues.
func TestFullQueueDelaysNoOther(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		_, err := s.plain.QueueDeclare("full", true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
		check(t, err)
		check(t, s.plain.PublishWithContext(t.Context(), "", "full", false, false, amqp.Publishing{}))
		tasks := make([]Task, 3000)
		for i := range tasks {
			tasks[i] = Task{ID: fmt.Sprintf("bad-%d", i), Queue: "full", DeliverAt: time.Now().Add(-time.Hour)}
		}
		check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
		wantOthersOnTime(s)
	})
}

// wantOthersOnTime schedules a task for another queue each second for a minute, and fails the test unless each is sent
// immediately.
func wantOthersOnTime(s *site) {
	s.Helper()
	<-time.After(time.Second)
	for i := range 60 {
		id := fmt.Sprint(i)
		start := time.Now()
		s.schedule(Task{ID: id, Queue: "good", DeliverAt: start})
		for {
			got, err := s.Get(s.Context(), NoTx, id)
			check(s.T, err)
			if got.Sends > 0 {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
		if took := time.Since(start); took > 2*relay.Patience {
			s.Errorf("task %d for another queue was sent after %v, want at most %v", i, took, 2*relay.Patience)
		}
		<-time.After(time.Second)
	}
}

// A queue that does not confirm does not delay tasks for other queues, and receives its own tasks when it confirms
// again.
func TestSilentQueueDelaysNoOther(t *testing.T) {
	onSite(t, Config{Batch: 50}, func(t *testing.T, s *site) {
		answer := s.srv.Silence("silent")
		var tasks []Task
		for i := range 500 {
			tasks = append(tasks, Task{ID: fmt.Sprintf("silent-%d", i), Queue: "silent", DeliverAt: time.Now()})
		}
		check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
		wantOthersOnTime(s)
		answer()
		after(3 * time.Minute)
		if n := sentOf(t, s.db, "silent"); n != len(tasks) {
			t.Errorf("%d tasks were sent after the queue confirmed again, want %d", n, len(tasks))
		}
	})
}

// If an exchange cannot route one routing key, tasks with its other routing keys are not delayed.
func TestRefusingRoutingKeyDelaysNoOther(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		check(t, s.plain.ExchangeDeclare("events", amqp.ExchangeTopic, true, false, false, false, nil))
		_, err := s.plain.QueueDeclare("good", true, false, false, false, nil)
		check(t, err)
		check(t, s.plain.QueueBind("good", "good", "events", false, nil))
		var tasks []Task
		for i := range 1000 {
			tasks = append(tasks, Task{ID: fmt.Sprintf("bad-%d", i), Exchange: "events", RoutingKey: "bad", DeliverAt: time.Now()})
		}
		check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
		after(time.Second)
		for i := range 20 {
			s.schedule(Task{ID: fmt.Sprint(i), Exchange: "events", RoutingKey: "good", DeliverAt: time.Now()})
			after(2 * relay.Patience)
			got, err := s.Get(t.Context(), NoTx, fmt.Sprint(i))
			check(t, err)
			if got.Sends == 0 {
				t.Errorf("task %d with another routing key was sent 0 times within %v, want once", i, 2*relay.Patience)
			}
		}
	})
}

// The relay does not wait for the answer of a queue that has refused messages before.
func TestSlowRefusalDelaysNoOther(t *testing.T) {
	r := recorder{before: func(_ context.Context, msgs []amqpx.Message) error {
		refused := &amqpx.BatchError{Total: len(msgs), Failed: map[int]*amqpx.SendError{}}
		for i, m := range msgs {
			if m.Queue == "slow" {
				refused.Failed[i] = &amqpx.SendError{ID: m.ID, Cause: amqpx.ErrNacked}
			}
		}
		if len(refused.Failed) > 0 {
			<-time.After(relay.Patience - time.Millisecond)
			return refused
		}
		return nil
	}}
	bubble(t, &r, Config{Workers: 1}, func(t *testing.T, s *Store, _ *sql.DB) {
		var slow []Task
		for i := range 100 {
			slow = append(slow, Task{ID: fmt.Sprint("slow-", i), Queue: "slow", DeliverAt: time.Now()})
		}
		check(t, s.ScheduleBatch(t.Context(), NoTx, slow))
		after(relay.Patience)
		for i := range 100 {
			at := time.Now()
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint(i), Queue: "good", DeliverAt: at}))
			after(100 * time.Millisecond)
			if got := r.receipts(); len(got) != i+1 || got[i].at.Sub(at) > relay.FirstLook {
				t.Fatalf("%d tasks for another queue were sent, want %d, each within %v", len(got), i+1, relay.FirstLook)
			}
		}
	})
}

// If a broker refuses logins, for example because it is starting, the tasks for its destinations wait and do not fail.
func TestRefusedLoginFailsNoTask(t *testing.T) {
	onSite(t, Config{}, func(_ *testing.T, s *site) {
		defer s.consume("q", Handler(s.db, s.noted(nil)))()
		accept := s.srv.RefuseLogins()
		s.srv.CutConnections()
		s.schedule(Task{ID: "a", Queue: "q", DeliverAt: time.Now()})
		after(5 * time.Minute)
		accept()
		after(5 * time.Minute)
		s.wantTask("a", StatusDone, 0)
	})
}
