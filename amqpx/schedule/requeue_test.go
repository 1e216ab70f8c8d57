package schedule

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The row of a task decides what Requeue does with a dead letter of the task's version 2.
func TestRequeueByRow(t *testing.T) {
	for name, c := range map[string]struct {
		row  rows.Found
		want inspect.RequeueOutcome
	}{
		"failed":                            {rows.Found{Version: 2, Status: rows.Failed, ToQueue: true}, inspect.RequeueRevived},
		"pending: the broker gave up on it": {rows.Found{Version: 2, Status: rows.Pending, ToQueue: true}, inspect.RequeueSent},
		"running":                           {rows.Found{Version: 2, Status: rows.Running, ToQueue: true}, inspect.RequeueStayed},
		"done":                              {rows.Found{Version: 2, Status: rows.Done, ToQueue: true}, inspect.RequeueRemoved},
		"cancelled":                         {rows.Found{Version: 2, Status: rows.Cancelled, ToQueue: true}, inspect.RequeueRemoved},
		"revived before":                    {rows.Found{Version: 3, Status: rows.Pending, ToQueue: true}, inspect.RequeueRemoved},
		"revived before, and failed again":  {rows.Found{Version: 3, Status: rows.Failed, ToQueue: true}, inspect.RequeueRemoved},
		"an older row":                      {rows.Found{Version: 1, Status: rows.Failed, ToQueue: true}, inspect.RequeueStayed},
		"no row":                            {rows.Found{}, inspect.RequeueStayed},
		"to an exchange, failed":            {rows.Found{Version: 2, Status: rows.Failed}, inspect.RequeueSent},
		"to an exchange, with an effect":    {rows.Found{Version: 2, Status: rows.Done}, inspect.RequeueSent},
		"to an exchange, cancelled":         {rows.Found{Version: 2, Status: rows.Cancelled}, inspect.RequeueRemoved},
		"to an exchange, running elsewhere": {rows.Found{Version: 2, Status: rows.Running}, inspect.RequeueSent},
	} {
		if got, why := requeue(c.row, 2); got != c.want || (why != "") != (got == inspect.RequeueStayed) {
			t.Errorf("%s: got %s with the reason %q, want %s, with a reason only for %s", name, got, why, c.want, inspect.RequeueStayed)
		}
	}
}

// failing returns a handler that rejects messages from the given queue while *fails is true.
func (s *site) failing(queue string, fails *bool) amqpx.Handler {
	return Handler(s.db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if *fails && d.Queue == queue {
			return amqpx.Reject(errors.New("no"))
		}
		return s.noted(nil)(ctx, tx, d)
	})
}

// Requeueing the dead letter of a failed task revives the task and removes the dead letter. If the task was revived
// before, its dead letter is only removed. Each task takes effect once.
func TestRequeueRevives(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		fails := true
		stop := s.consume("q", s.failing("q", &fails))
		for _, id := range []string{"a", "b", "c"} {
			s.schedule(Task{ID: id, Queue: "q", DeliverAt: time.Now()})
		}
		after(time.Minute)
		fails = false
		check(t, s.Revive(t.Context(), NoTx, "c", time.Now()))
		after(time.Minute)
		o := inspect.RequeueOptions{Queue: "q.dead"}
		r, err := inspect.Requeue(t.Context(), s.client, o)
		check(t, err)
		if r.Total != 3 || r.Stayed != 3 {
			t.Errorf("Requeue without a task store: got %+v, want Total = 3 and Stayed = 3", r)
		}
		o.Tasks, o.DryRun = s.Store, true
		dry, err := inspect.Requeue(t.Context(), s.client, o)
		check(t, err)
		o.DryRun = false
		r, err = inspect.Requeue(t.Context(), s.client, o)
		check(t, err)
		for i, r := range []inspect.RequeueReport{dry, r} {
			if r.Total != 3 || r.Revived != 2 || r.Removed != 1 {
				t.Errorf("Requeue (dry run: %t): got %+v, want Total = 3, Revived = 2 and Removed = 1", i == 0, r)
			}
		}
		after(time.Minute)
		if q, _ := s.srv.Queue("q.dead"); q.Ready != 0 {
			t.Errorf("%d dead letters are left, want 0", q.Ready)
		}
		for _, id := range []string{"a", "b", "c"} {
			s.wantTask(id, StatusDone, 0)
			if n := len(s.saw(id)); n != 1 {
				t.Errorf("%d effects belong to task %s, want 1", n, id)
			}
		}
		stop()
	})
}

// If the connection is lost after a failure has been recorded in the row, but before the dead letter has been
// confirmed, the task still gets its dead letter.
func TestFailedTaskHasItsDeadLetter(t *testing.T) {
	no := amqpx.Reject(errors.New("no"))
	for name, handler := range map[string]func(s *site) amqpx.Handler{
		"the last attempt": func(s *site) amqpx.Handler {
			return Handler(s.db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return errors.New("no") })
		},
		"Handler": func(s *site) amqpx.Handler {
			return Handler(s.db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return no })
		},
		"in groups": func(s *site) amqpx.Handler {
			return Handler(s.db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return no }, WithGroup(8))
		},
		"LeaseHandler": func(s *site) amqpx.Handler {
			return LeaseHandler(s.db, func(context.Context, *amqpx.Delivery, string) (Func, error) { return nil, no })
		},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, Config{}, func(t *testing.T, s *site) {
				retry, reason := topology.Retry{}, inspect.ReasonRejected
				if name == "the last attempt" {
					retry.MaxAttempts, reason = 1, inspect.ReasonAttempts
				}
				stop := s.consume("q", handler(s), amqpx.WithRetry(retry))
				undo := s.srv.Nack("q.dead")
				s.schedule(Task{ID: "a", Queue: "q", DeliverAt: time.Now()})
				after(time.Minute)
				s.wantTask("a", StatusFailed, 1)
				s.srv.CutConnections()
				undo()
				after(time.Minute)
				dead := s.srv.Expect(t, amqptest.Want{Queue: "q.dead"})
				if got, why := dead.Headers[amqpx.HeaderReason], dead.Headers[amqpx.HeaderError]; got != reason || why != "no" {
					t.Errorf("the dead letter has the reason %v and the error %v, want %s and no", got, why, reason)
				}
				if task, err := s.Get(t.Context(), NoTx, "a"); err != nil || task.Attempts != 1 {
					t.Errorf("Get: got %d attempts and the error %v, want 1 and no error", task.Attempts, err)
				}
				stop()
			})
		})
	}
}

// If a task was sent to an exchange, requeueing a dead letter sends it only to the queue in which it died.
func TestRequeueOfOneSubscriber(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		fails := true
		stop := s.consumeAll([]string{"good", "bad"}, s.failing("bad", &fails))
		s.exchange("x", "good", "bad")
		s.schedule(Task{ID: "a", Exchange: "x", RoutingKey: "k", DeliverAt: time.Now()})
		after(time.Minute)
		fails = false
		r, err := inspect.Requeue(t.Context(), s.client, inspect.RequeueOptions{Queue: "bad.dead", Tasks: s.Store})
		check(t, err)
		if r.Sent != 1 {
			t.Errorf("Requeue of one subscriber's dead letter: got %+v, want Sent = 1", r)
		}
		after(time.Minute)
		got := s.saw("a")
		if len(got) != 2 || got[0][:3] == got[1][:3] {
			t.Errorf("effects: got %v, want one in each of two queues", got)
		}
		stop()
	})
}
