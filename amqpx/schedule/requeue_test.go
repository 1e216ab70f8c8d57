package schedule

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// What becomes of a dead message of version 2, by the row of its task.
func TestRequeueByRow(t *testing.T) {
	for name, c := range map[string]struct {
		row  found
		want amqpx.RequeueOutcome
	}{
		"failed":                               {found{version: 2, status: StatusFailed, toQueue: true}, amqpx.RequeueRevived},
		"pending: the broker gave up on it":    {found{version: 2, status: StatusPending, toQueue: true}, amqpx.RequeueSent},
		"running":                              {found{version: 2, status: StatusRunning, toQueue: true}, amqpx.RequeueStayed},
		"done":                                 {found{version: 2, status: StatusDone, toQueue: true}, amqpx.RequeueRemoved},
		"cancelled":                            {found{version: 2, status: StatusCancelled, toQueue: true}, amqpx.RequeueRemoved},
		"revived before":                       {found{version: 3, status: StatusPending, toQueue: true}, amqpx.RequeueRemoved},
		"revived before, and failed again":     {found{version: 3, status: StatusFailed, toQueue: true}, amqpx.RequeueRemoved},
		"an older row":                         {found{version: 1, status: StatusFailed, toQueue: true}, amqpx.RequeueStayed},
		"no row":                               {found{}, amqpx.RequeueStayed},
		"an exchange's, failed":                {found{version: 2, status: StatusFailed}, amqpx.RequeueSent},
		"an exchange's, with an effect":        {found{version: 2, status: StatusDone}, amqpx.RequeueSent},
		"an exchange's, cancelled":             {found{version: 2, status: StatusCancelled}, amqpx.RequeueRemoved},
		"an exchange's, another one's attempt": {found{version: 2, status: StatusRunning}, amqpx.RequeueSent},
	} {
		if got, why := c.row.requeue(2); got != c.want || (why != "") != (got == amqpx.RequeueStayed) {
			t.Errorf("%s: %s (%s), want %s", name, got, why, c.want)
		}
	}
}

// failing is a handler that rejects in a queue as long as fails says so.
func (s *site) failing(queue string, fails *bool) amqpx.Handler {
	return Handler(s.db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if *fails && d.Queue == queue {
			return amqpx.Reject(errors.New("no"))
		}
		return s.noted(nil)(ctx, tx, d)
	})
}

// A failed task is revived by its dead letter, which goes; the dead letter of a task
// that was revived otherwise goes too, and none has a second effect.
func TestRequeueRevives(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		fails := true
		stop := s.consume("q", s.failing("q", &fails))
		for _, id := range []string{"a", "b", "c"} {
			s.schedule(Task{ID: id, Queue: "q", DeliverAt: time.Now()})
		}
		after(time.Minute)
		fails = false
		check(t, s.Revive(t.Context(), nil, "c", time.Now()))
		after(time.Minute)
		o := amqpx.RequeueOptions{Queue: "q.dead"}
		r, err := s.client.Requeue(t.Context(), o)
		check(t, err)
		if r.Total != 3 || r.Stayed != 3 {
			t.Errorf("without the database: %+v", r)
		}
		o.Tasks, o.DryRun = s.Store, true
		dry, err := s.client.Requeue(t.Context(), o)
		check(t, err)
		o.DryRun = false
		r, err = s.client.Requeue(t.Context(), o)
		check(t, err)
		for _, r := range []amqpx.RequeueReport{dry, r} {
			if r.Total != 3 || r.Revived != 2 || r.Removed != 1 {
				t.Errorf("%+v", r)
			}
		}
		after(time.Minute)
		if q, _ := s.srv.Queue("q.dead"); q.Ready != 0 {
			t.Errorf("%d dead letters are left", q.Ready)
		}
		for _, id := range []string{"a", "b", "c"} {
			s.wantTask(id, StatusDone, 0)
			if n := len(s.saw(id)); n != 1 {
				t.Errorf("%d effects of %s", n, id)
			}
		}
		stop()
	})
}

// Of a task to an exchange one queue's dead letter goes back to that queue alone.
func TestRequeueOfOneSubscriber(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		fails := true
		stop := s.consumeAll([]string{"good", "bad"}, s.failing("bad", &fails))
		s.exchange("x", "good", "bad")
		s.schedule(Task{ID: "a", Exchange: "x", RoutingKey: "k", DeliverAt: time.Now()})
		after(time.Minute)
		fails = false
		r, err := s.client.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "bad.dead", Tasks: s.Store})
		check(t, err)
		if r.Sent != 1 {
			t.Errorf("%+v", r)
		}
		after(time.Minute)
		got := s.saw("a")
		if len(got) != 2 || got[0][:3] == got[1][:3] {
			t.Errorf("effects: %v", got)
		}
		stop()
	})
}
