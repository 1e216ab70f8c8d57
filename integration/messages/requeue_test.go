package messages_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// readyIn returns a function that counts the ready messages of a queue. It uses one channel for all calls.
func readyIn(t *testing.T, v *suite.Vhost) func(queue string) int {
	t.Helper()
	ch := v.Channel(t)
	return func(queue string) int {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q.Messages
	}
}

// However many times a queue is searched, the messages that stay are not dropped by a delivery limit, including one
// that a policy sets. If the broker can keep the order of the messages, they stay in order. Without the management API
// the limit is unknown, so Requeue does nothing that might count against it.
func TestRequeueLeavesTheRest(t *testing.T) {
	t.Parallel()
	suite.OnVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := suite.Requeuer(t, v)
		version := plan.ParseVersion(v.Broker.Version())
		suite.Makes(t, v, "q", suite.QuorumQueue)
		v.Manage(t, http.MethodPut, v.Mgmt.InVhost("policies", "three"), map[string]any{
			"pattern":    "^policy$",
			"definition": map[string]any{"delivery-limit": 3},
			"apply-to":   "queues",
		})
		queues := map[string]amqp.Table{
			"default": suite.QuorumQueue, "three": {"x-queue-type": "quorum", "x-delivery-limit": 3}, "classic": {"x-queue-type": "classic"},
			"policy": {"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit},
		}
		for name, args := range queues {
			suite.Buries(t, v, name, "q", 12, args)
		}
		for name := range queues {
			choose := func(n string) inspect.RequeueOptions {
				return inspect.RequeueOptions{Queue: name, Filter: inspect.DeadLetterFilter{Header: "n", HeaderValue: n}}
			}
			looks := func(o inspect.RequeueOptions, times, sent int) {
				t.Helper()
				for range times {
					if r, err := inspect.Requeue(t.Context(), c, o); err != nil || r.Examined < 11 || r.Sent != sent {
						t.Fatalf("%s: got %v, %+v, want no error, Examined >= 11 and Sent = %v", name, err, r, sent)
					}
				}
			}
			if refused := name != "classic" && version.Before(4, 3, 0); refused {
				o := choose("5")
				o.DryRun = true
				if _, err := inspect.Requeue(t.Context(), c, o); !errors.Is(err, inspect.ErrPeek) {
					t.Errorf("queue %s: a dry run without the management API: got error %v, want inspect.ErrPeek", name, err)
				}
			}
			looks(choose("none"), 6, 0)
			suite.Known(t, v, name)
			o := choose("5")
			o.Management, o.DryRun = v.Management, true
			looks(o, 24, 1)
			o.DryRun = false
			looks(o, 1, 1)
			if got := suite.Drains(t, v, "q"); !slices.Equal(got, []string{"q-0005"}) {
				t.Errorf("queue %s: requeued %v, want [q-0005]", name, got)
			}
			got := suite.Drains(t, v, name)
			sorted := slices.IsSorted(got)
			slices.Sort(got)
			if len(slices.Compact(slices.Clone(got))) != 11 || len(got) != 11 {
				t.Errorf("queue %s: left the messages %v, want 11 different ones", name, got)
			}
			if !sorted && (name == "classic" || version.AtLeast(4, 3, 0)) {
				t.Errorf("queue %s: the remaining messages are out of order, want ascending ids", name)
			}
		}
	})
}

// If the consumer rejects every message immediately, a run of Requeue sends each dead letter only once. Two operators
// who requeue at the same time share the messages.
func TestRequeueOfARejectedCard(t *testing.T) {
	t.Parallel()
	const n = 60
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c, other := suite.Requeuer(t, v), suite.Requeuer(t, v)
		var handled atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- c.Consume(ctx, "q", func(context.Context, *amqpx.Delivery) error {
				handled.Add(1)
				return amqpx.Reject(errors.New("card rejected"))
			})
		}()
		for i := range n {
			if err := c.Send(ctx, amqpx.Message{ID: fmt.Sprint(i), Queue: "q"}); err != nil {
				t.Fatal(err)
			}
		}
		ready := readyIn(t, v)
		dead := func() bool { return ready("q.dead") == n }
		suite.Eventually(t, "all messages are dead letters", dead)
		var runs sync.WaitGroup
		var sent, again atomic.Int64
		for _, c := range []*amqpx.Client{c, other} {
			runs.Go(func() {
				r, err := inspect.Requeue(ctx, c, inspect.RequeueOptions{Queue: "q.dead"})
				if err != nil {
					t.Error(err)
				}
				sent.Add(int64(r.Sent))
				again.Add(int64(r.DiedAgain))
			})
		}
		runs.Wait()
		suite.Eventually(t, "all messages are dead letters again", dead)
		if sent.Load() != n || handled.Load() != 2*n {
			t.Errorf("%d dead letters were sent %d times and handled %d times, and %d died again during the run, want each sent once and handled twice", n, sent.Load(), handled.Load(), again.Load())
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		ids := suite.Drains(t, v, "q.dead")
		slices.Sort(ids)
		if len(slices.Compact(ids)) != n {
			t.Errorf("%d different dead letters are left, want %d", len(slices.Compact(ids)), n)
		}
	})
}

// Destinations that accept no messages, or only some, do not keep other messages from their destinations.
func TestRequeueToDestinationsInTrouble(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := suite.Requeuer(t, v)
		suite.Makes(t, v, "good", suite.QuorumQueue)
		suite.Makes(t, v, "full", amqp.Table{"x-queue-type": "classic", "x-max-length": 2, "x-overflow": "reject-publish"})
		for _, died := range []string{"full", "gone", "good"} {
			suite.Buries(t, v, "dead", died, 10, suite.QuorumQueue)
		}
		r, err := inspect.Requeue(t.Context(), c, inspect.RequeueOptions{Queue: "dead"})
		if err != nil {
			t.Fatal(err)
		}
		if r.Sent != 12 || r.Stayed != 18 || r.Examined != 30 {
			t.Errorf("got %+v, want Sent = 12, Stayed = 18 and Examined = 30", r)
		}
		for queue, want := range map[string]int{"good": 10, "full": 2, "dead": 18} {
			suite.Gathers(t, v, queue, want)
		}
	})
}

// A command that is killed at any moment loses no message, and leaves at most one message twice.
func TestRequeueKilled(t *testing.T) {
	t.Parallel()
	const n, kills = 300, 5
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		suite.Makes(t, v, "q", suite.QuorumQueue)
		suite.Buries(t, v, "q.dead", "q", n, suite.QuorumQueue)
		run := func(args ...string) *exec.Cmd {
			child := suite.Command(t, append([]string{"requeue", "--queue", "q.dead", "--yes", "--url", v.URL}, args...)...)
			child.Stderr = os.Stderr
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			return child
		}
		ready := readyIn(t, v)
		for range kills {
			came := min(ready("q")+1+rand.IntN(n/kills/2), n)
			child := run("--rate", "100") // otherwise it would finish before it is killed
			suite.Eventually(t, fmt.Sprintf("%d messages have arrived", came), func() bool { return ready("q") >= came })
			_ = child.Process.Kill()
			_ = child.Wait()
		}
		suite.Eventually(t, "the broker has returned the messages of the killed process", func() bool {
			return ready("q")+ready("q.dead") >= n
		})
		if err := run().Wait(); err != nil {
			t.Errorf("the last requeue: got error %v, want nil", err)
		}
		ids := suite.Drains(t, v, "q")
		slices.Sort(ids)
		twice := len(ids)
		ids = slices.Compact(ids)
		if twice -= len(ids); len(ids) != n || twice > kills {
			t.Errorf("got %d different messages and %d duplicates, want %d messages and at most one duplicate for each of the %d kills", len(ids), twice, n, kills)
		}
		t.Logf("%d of %d messages arrived twice after %d kills", twice, n, kills)
	})
}

// When a run of Requeue returns, the messages that it sent or discarded have been removed from the queue, no matter how
// many were in flight.
func TestRequeueIsDoneWhenItEnds(t *testing.T) {
	t.Parallel()
	const n, limit, inFlight = 300, 100, 50
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		c := suite.Requeuer(t, v)
		suite.Makes(t, v, "q", suite.QuorumQueue)
		ready := readyIn(t, v)
		queues := []string{"q1.dead", "q2.dead", "q3.dead"}
		for _, dead := range queues {
			suite.Buries(t, v, dead, "q", n, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		}
		for _, dead := range queues {
			suite.Known(t, v, dead)
			left := n
			for i, o := range []inspect.RequeueOptions{{Limit: limit}, {Limit: limit, Discard: true}, {Discard: true}} {
				o.Queue, o.InFlight, o.Management = dead, inFlight, v.Management
				r, err := inspect.Requeue(t.Context(), c, o)
				if err != nil || r.Gone() != limit {
					t.Fatalf("Requeue: got error %v and %+v, want no error and %v messages sent or discarded", err, r, limit)
				}
				left -= limit
				if got := ready(dead); got != left {
					t.Errorf("after run %d, queue %s has %d messages, want %d", i, dead, got, left)
				}
			}
		}
	})
}

// A run that examines some of the messages that another run has put back leaves them in order, so that the next run
// finds the messages that it has counted.
func TestRequeueCountsTheNextRunsMessages(t *testing.T) {
	t.Parallel()
	const n, limit = 600, 2
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		if plan.ParseVersion(v.Broker.Version()).Before(4, 0, 0) {
			t.Skip("skipped: before 4.0, the order of the messages changes")
		}
		c := suite.Requeuer(t, v)
		suite.Buries(t, v, "q.dead", "q", n, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		suite.Known(t, v, "q.dead")
		all := inspect.RequeueOptions{Queue: "q.dead", Discard: true, DryRun: true, Management: v.Management}
		some := all
		some.Limit = limit
		for _, o := range []inspect.RequeueOptions{all, some, some} {
			if r, err := inspect.Requeue(t.Context(), c, o); err != nil || r.Chosen == 0 {
				t.Fatalf("Requeue: got error %v and %+v, want no error and Chosen > 0", err, r)
			}
		}
		some.DryRun = false
		if r, err := inspect.Requeue(t.Context(), c, some); err != nil || r.Discarded != limit {
			t.Fatalf("got %v, %+v, want no error and Discarded = %v", err, r, limit)
		}
		ids := suite.Drains(t, v, "q.dead")
		if len(ids) != n-limit || ids[0] != "q-0002" || !slices.IsSorted(ids) {
			t.Errorf("%d messages are left, starting with %v, want %d in order, starting with q-0002", len(ids), ids[:min(5, len(ids))], n-limit)
		}
	})
}
