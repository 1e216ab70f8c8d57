package tasks_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// emptyQueues is a sender that accepts messages and reports that all queues are empty.
type emptyQueues struct{ outbox }

func (*emptyQueues) QueueInfo(context.Context, string) (amqpx.QueueInfo, error) {
	return amqpx.QueueInfo{Consumers: 1}, nil
}

// A task that never gets a result is sent MaxSends times. If its queue is empty afterwards, the task fails. If the
// relay cannot check, as with an exchange, the task stays pending.
func TestScheduleGivesUp(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		const sends = 3
		var out emptyQueues
		var mu sync.Mutex
		var told error
		s := newStore(t, db, &out, schedule.Config{
			PollInterval: 5 * time.Millisecond, Grace: 20 * time.Millisecond, MaxSends: sends,
			Hooks: schedule.Hooks{SendFailed: func(_ schedule.TaskRow, err error, failed bool) {
				mu.Lock()
				defer mu.Unlock()
				if failed {
					told = errors.Join(told, err)
				}
			}},
		})
		past := time.Now().Add(-time.Second)
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, orderTask("queue", past)))
		for _, key := range []string{"one", "two"} {
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: key, Exchange: "events", RoutingKey: key, DeliverAt: past}))
		}
		stop := runStore(t, s)
		suite.Eventually(t, "the task to the queue has failed", func() bool { return taskOf(t, s, "queue").Status == schedule.StatusFailed })
		suite.Eventually(t, "the tasks for the exchange were sent MaxSends times", func() bool {
			return taskOf(t, s, "one").Sends == sends && taskOf(t, s, "two").Sends == sends
		})
		suite.Eventually(t, "the back-off after the last send is over", func() bool {
			return time.Since(taskOf(t, s, "two").SentAt) > 10*(20*time.Millisecond<<sends)
		})
		stop()
		for _, id := range []string{"queue", "one", "two"} {
			if n := out.count(id); n != sends {
				t.Errorf("%s was sent %d times, want %d", id, n, sends)
			}
		}
		for _, id := range []string{"one", "two"} {
			if got := taskOf(t, s, id); got.Status != schedule.StatusPending {
				t.Errorf("task %s: got %+v, want Status = schedule.StatusPending, because its messages may be in a queue bound to the exchange", id, got)
			}
		}
		got := taskOf(t, s, "queue")
		for _, part := range []string{"times (MaxSends)", "queue orders.expire", "schedule.Handler"} {
			if !strings.Contains(got.LastError, part) {
				t.Errorf("LastError is %q, want it to contain %q", got.LastError, part)
			}
		}
		if !errors.Is(told, schedule.ErrMaxSends) {
			t.Errorf("the hook received the error %v, want schedule.ErrMaxSends", told)
		}
	})
}
