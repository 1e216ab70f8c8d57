package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/cli"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// requeueEnv makes a child process the command requeue; its value are the arguments,
// a line each.
const requeueEnv = "RABBITDELAY_TEST_REQUEUE"

func requeueMain(args string) int {
	return cli.Run(context.Background(), strings.Split(args, "\n"), os.Stdin, os.Stdout, os.Stderr)
}

// requeuer is a client with few queues.
func requeuer(t *testing.T, v *vhost) *amqpx.Client {
	t.Helper()
	s, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	return openClient(t, amqpx.Config{URL: v.url, Strategy: s})
}

// buries puts n messages that died in a queue into another, which it declares.
func buries(t *testing.T, v *vhost, queue, died string, n int, args amqp.Table) {
	t.Helper()
	ch := v.channel(t)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		dc, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			MessageId: fmt.Sprintf("%s-%04d", died, i), DeliveryMode: amqp.Persistent,
			Headers: amqp.Table{amqpx.HeaderReason: amqpx.ReasonRejected, amqpx.HeaderQueue: died, "n": fmt.Sprint(i)},
		})
		if err != nil || !dc.Wait() {
			t.Fatal(err)
		}
	}
}

// drains takes everything out of a queue, in its order.
func drains(t *testing.T, v *vhost, queue string) (ids []string) {
	t.Helper()
	ch := v.channel(t)
	for {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return ids
		}
		ids = append(ids, d.MessageId)
	}
}

func makes(t *testing.T, v *vhost, queue string, args amqp.Table) {
	t.Helper()
	if _, err := v.channel(t).QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
}

// readyIn counts on one channel, however often it is asked.
func readyIn(t *testing.T, v *vhost) func(queue string) int {
	t.Helper()
	ch := v.channel(t)
	return func(queue string) int {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q.Messages
	}
}

var quorumQueue = amqp.Table{"x-queue-type": "quorum"}

// However often a queue is looked through, no delivery limit drops what stays, a
// policy's neither; and where messages keep their place, they keep it. Over AMQP
// alone a limit is not known, and nothing that might count is done.
func TestRequeueLeavesTheRest(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		c := requeuer(t, v)
		version := topology.ParseVersion(v.broker.Version())
		makes(t, v, "q", quorumQueue)
		v.manage(t, http.MethodPut, v.mgmt.InVhost("policies", "three"), map[string]any{"pattern": "^policy$", "definition": map[string]any{"delivery-limit": 3}, "apply-to": "queues"})
		queues := map[string]amqp.Table{
			"default": quorumQueue, "three": {"x-queue-type": "quorum", "x-delivery-limit": 3}, "classic": {"x-queue-type": "classic"},
			"policy": {"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit},
		}
		for name, args := range queues {
			buries(t, v, name, "q", 12, args)
		}
		for name := range queues {
			choose := func(n string) amqpx.RequeueOptions {
				return amqpx.RequeueOptions{Queue: name, Filter: amqpx.DeadLetterFilter{Header: "n", HeaderValue: n}}
			}
			looks := func(o amqpx.RequeueOptions, times, sent int) {
				t.Helper()
				for range times {
					if r, err := c.Requeue(t.Context(), o); err != nil || r.Looked < 11 || r.Sent != sent {
						t.Fatalf("%s: %v, %+v", name, err, r)
					}
				}
			}
			if refused := name != "classic" && version.Before(4, 3, 0); refused {
				o := choose("5")
				o.DryRun = true
				if _, err := c.Requeue(t.Context(), o); !errors.Is(err, amqpx.ErrPeek) {
					t.Errorf("%s: a dry run over AMQP alone: %v", name, err)
				}
			}
			looks(choose("none"), 6, 0)
			known(t, v, name)
			o := choose("5")
			o.Management, o.DryRun = v.mgmt, true
			looks(o, 24, 1)
			o.DryRun = false
			looks(o, 1, 1)
			if got := drains(t, v, "q"); !slices.Equal(got, []string{"q-0005"}) {
				t.Errorf("%s: sent %v", name, got)
			}
			got := drains(t, v, name)
			sorted := slices.IsSorted(got)
			slices.Sort(got)
			if len(slices.Compact(slices.Clone(got))) != 11 || len(got) != 11 {
				t.Errorf("%s: left %v", name, got)
			}
			if !sorted && (name == "classic" || version.AtLeast(4, 3, 0)) {
				t.Errorf("%s: the messages that stayed have lost their order", name)
			}
		}
	})
}

// known waits until the management API knows the queue's policies, where they matter
// for a look.
func known(t *testing.T, v *vhost, queue string) {
	t.Helper()
	if topology.ParseVersion(v.broker.Version()).AtLeast(4, 3, 0) {
		return
	}
	eventually(t, "the policies of "+queue+" are known", func() bool {
		q, err := v.mgmt.Queue(t.Context(), queue)
		mustSucceed(t, err)
		return q.EffectivePolicy != nil
	})
}

// A consumer that rejects everything at once gets each dead letter once in a run,
// and two operators at the same moment share the messages.
func TestRequeueOfARejectedCard(t *testing.T) {
	const n = 60
	onVhosts(t, func(t *testing.T, v *vhost) {
		c, other := requeuer(t, v), requeuer(t, v)
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
		waitFor(t, "all are dead", dead)
		var runs sync.WaitGroup
		var sent, again atomic.Int64
		for _, c := range []*amqpx.Client{c, other} {
			runs.Go(func() {
				r, err := c.Requeue(ctx, amqpx.RequeueOptions{Queue: "q.dead"})
				if err != nil {
					t.Error(err)
				}
				sent.Add(int64(r.Sent))
				again.Add(int64(r.Again))
			})
		}
		runs.Wait()
		waitFor(t, "all are dead again", dead)
		if sent.Load() != n || handled.Load() != 2*n {
			t.Errorf("%d dead letters were sent %d times and handled %d times; %d came back during the run", n, sent.Load(), handled.Load(), again.Load())
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		ids := drains(t, v, "q.dead")
		slices.Sort(ids)
		if len(slices.Compact(ids)) != n {
			t.Errorf("%d of %d messages are left", len(ids), n)
		}
	})
}

// Destinations that take nothing, or only some, keep nobody else from theirs.
func TestRequeueToDestinationsInTrouble(t *testing.T) {
	onVhosts(t, func(t *testing.T, v *vhost) {
		c := requeuer(t, v)
		makes(t, v, "good", quorumQueue)
		makes(t, v, "full", amqp.Table{"x-queue-type": "classic", "x-max-length": 2, "x-overflow": "reject-publish"})
		for _, died := range []string{"full", "gone", "good"} {
			buries(t, v, "dead", died, 10, quorumQueue)
		}
		r, err := c.Requeue(t.Context(), amqpx.RequeueOptions{Queue: "dead"})
		if err != nil {
			t.Fatal(err)
		}
		if r.Sent != 12 || r.Stayed != 18 || r.Looked != 30 {
			t.Errorf("%+v", r)
		}
		for queue, want := range map[string]int{"good": 10, "full": 2, "dead": 18} {
			if n := messagesIn(t, v, queue); n != want {
				t.Errorf("%s has %d messages, want %d", queue, n, want)
			}
		}
	})
}

// A command that is killed at any moment loses nothing, and leaves at most one
// message twice.
func TestRequeueKilled(t *testing.T) {
	const n, kills = 300, 5
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	onVhosts(t, func(t *testing.T, v *vhost) {
		makes(t, v, "q", quorumQueue)
		buries(t, v, "q.dead", "q", n, quorumQueue)
		run := func() *exec.Cmd {
			child := exec.CommandContext(t.Context(), self)
			child.Env = append(os.Environ(), requeueEnv+"="+strings.Join([]string{"requeue", "--queue", "q.dead", "--yes", "--url", v.url}, "\n"))
			child.Stderr = os.Stderr
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			return child
		}
		ready := readyIn(t, v)
		for range kills {
			child := run()
			came := ready("q") + 1 + rand.IntN(n/kills/2)
			waitFor(t, fmt.Sprintf("%d messages came", came), func() bool { return ready("q") >= came })
			_ = child.Process.Kill()
			_ = child.Wait()
		}
		waitFor(t, "the broker has noticed", func() bool {
			return ready("q")+ready("q.dead") >= n
		})
		if err := run().Wait(); err != nil {
			t.Errorf("the last run: %v", err)
		}
		ids := drains(t, v, "q")
		slices.Sort(ids)
		twice := len(ids)
		ids = slices.Compact(ids)
		if twice -= len(ids); len(ids) != n || twice > kills {
			t.Errorf("%d of %d messages came, %d of them twice after %d kills", len(ids), n, twice, kills)
		}
		t.Logf("%d of %d messages came twice after %d kills", twice, n, kills)
	})
}
