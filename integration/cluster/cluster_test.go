package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/integration/cluster"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) {
	code := tier.Run(m, tier.Plan{Nightly: []string{"TestContainers", "TestNodes"}}, nil)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func eventually(t *testing.T, what string, holds func() (bool, error)) {
	t.Helper()
	deadline := time.After(servers.Patience)
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, err := holds()
		if ok {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("condition not met within %v: %s (%v)", servers.Patience, what, err)
		case <-ticker.C:
		}
	}
}

// controlled has the methods that both kinds of cluster share.
type controlled interface {
	Nodes() int
	URLs() []string
	Leader(ctx context.Context, from int, queue string) (int, error)
	Kill(ctx context.Context, i int) error
	Start(ctx context.Context, i int) error
	Leave(ctx context.Context, i int) error
	Join(ctx context.Context, i int) error
	Ctl(ctx context.Context, i int, args ...string) (string, error)
	Close() error
}

func TestContainers(t *testing.T) {
	testCluster(t, func(o cluster.Options) (controlled, error) {
		o.TickTime = 4 * time.Second
		return cluster.Start(t.Context(), o)
	})
	for _, kind := range []string{"container", "network"} {
		out, err := exec.Command("docker", kind, "ls", "--quiet", "--filter", fmt.Sprintf("name=rabbitdelay-%d-", os.Getpid())).Output()
		if err != nil || len(out) > 0 {
			t.Errorf("docker %s ls shows %q (error %v), want none of the cluster's", kind, out, err)
		}
	}
}

func TestNodes(t *testing.T) {
	testCluster(t, func(o cluster.Options) (controlled, error) { return cluster.StartNodes(t.Context(), o) })
}

func testCluster(t *testing.T, start func(cluster.Options) (controlled, error)) {
	t.Helper()
	if testing.Short() || os.Getenv(servers.EnvSkip) == "1" {
		t.Skip("skipped: a cluster takes half a minute to start")
	}
	c, err := start(cluster.Options{Log: func(line string) { t.Log(line) }})
	if errors.Is(err, cluster.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	// sees returns a function that reports whether node i sees want running nodes.
	sees := func(i, want int) func() (bool, error) {
		return func() (bool, error) {
			out, err := c.Ctl(t.Context(), i, "--silent", "eval", "length([N || N <- [node() | nodes()], rabbit:is_running(N)]).")
			return strings.TrimSpace(out) == fmt.Sprint(want), err
		}
	}

	const queue = "q"
	publish(t, c.URLs()[0], queue, 10)
	leader, err := c.Leader(t.Context(), 0, queue)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	other := (leader + 1) % c.Nodes()
	eventually(t, "the queue has another leader", func() (bool, error) {
		now, err := c.Leader(t.Context(), other, queue)
		return err == nil && now != leader, err
	})
	if n := messages(t, c.URLs()[other], queue); n != 10 {
		t.Errorf("after the leader was killed, the queue has %d messages, want 10", n)
	}
	if err := c.Start(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is running again", sees(other, 3))

	if err := c.Leave(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other nodes see the isolated node as down", sees(other, 2))
	_ = channel(t, c.URLs()[leader]) // clients can still reach the node
	if err := c.Join(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all nodes see each other again", sees(other, 3))
	publish(t, c.URLs()[leader], queue, 1)
	if n := messages(t, c.URLs()[other], queue); n != 11 {
		t.Errorf("after the partition, the queue has %d messages, want 11", n)
	}
}

func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func publish(t *testing.T, url, queue string, n int) {
	t.Helper()
	ch := channel(t, url)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range n {
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
		if err != nil {
			t.Fatal(err)
		}
		if acked, err := confirm.WaitContext(ctx); !acked || err != nil {
			t.Fatalf("waiting for the confirm: got error %v, want a confirm", err)
		}
	}
}

func messages(t *testing.T, url, queue string) int {
	t.Helper()
	ch := channel(t, url)
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}
