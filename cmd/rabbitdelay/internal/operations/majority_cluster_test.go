package operations_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/integration/cluster"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// nightVersions lists the RabbitMQ versions of the clusters.
var nightVersions = []string{"3.10", "4.0", "4.3"}

// A cluster loses one node, then its majority, and recovers. Counts that cannot be read are reported as unknown, and
// the doctor's first finding says why. A console runs throughout, and shows the same without a reload.
func TestNightWithoutAMajority(t *testing.T) {
	if os.Getenv(servers.EnvSkip) == "1" || testing.Short() {
		t.Skip("skipped: it starts clusters")
	}
	for _, version := range nightVersions {
		t.Run(version, func(t *testing.T) { newNight(t, version).spend(t) })
	}
}

type night struct {
	*cluster.Cluster

	files   []string // configuration files, one per node
	console *nightConsole
}

const (
	nightDead    = "orders.expire.dead"
	nightClassic = "reports.dead" // this queue is on the first node
)

func newNight(t *testing.T, version string) *night {
	t.Helper()
	cl, err := cluster.Start(t.Context(), cluster.Options{Version: version, Log: func(line string) { t.Log(line) }})
	if errors.Is(err, cluster.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &night{Cluster: cl}
	for i, url := range cl.URLs() {
		suite.Docker(t, "exec", cl.Container(i), "rabbitmq-plugins", "enable", "rabbitmq_management")
		address := suite.Docker(t, "inspect", "--format", "{{(index .NetworkSettings.Networks \"bridge\").IPAddress}}", cl.Container(i))
		file := filepath.Join(t.TempDir(), fmt.Sprintf("night%d.yaml", i))
		text := fmt.Sprintf(`broker: {url: %q, management_url: "http://guest:guest@%s:15672"}
delay: {bucket: {radices: [3], resolution: 100ms}}
destinations: [{queue: orders.expire}]
`, url, address)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n.files = append(n.files, file)
	}
	return n
}

// rabbitdelay runs a command against one node.
func (n *night) rabbitdelay(t *testing.T, node int, args ...string) suite.Ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	return suite.RunCLI(ctx, append(args, "-f", n.files[node])...)
}

// until repeats a command until its output contains all words.
func (n *night) until(t *testing.T, node int, words []string, args ...string) suite.Ran {
	t.Helper()
	for deadline := time.Now().Add(suite.Patience); ; {
		r := n.rabbitdelay(t, node, args...)
		missing := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.Contains(r.Stdout+r.Stderr, w) })
		if len(missing) == 0 {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatalf("rabbitdelay %v: got\n%s\nwant output containing %q", args, r, missing)
		}
	}
}

func (n *night) fill(t *testing.T) {
	t.Helper()
	conn, err := amqp.Dial(n.URLs()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	args := amqp.Table{"x-queue-type": "classic"} // the broker creates the queue on the node of the connection
	if _, err := ch.QueueDeclare(nightClassic, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{nightDead, nightClassic} {
		for range 5 {
			dc, err := ch.PublishWithDeferredConfirm("", q, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")})
			if err != nil || !dc.Wait() {
				t.Fatalf("publishing to %s: got error %v, want nil and a confirm", q, err)
			}
		}
	}
}

func (n *night) spend(t *testing.T) {
	const one = 1 // the node that keeps running
	if r := n.rabbitdelay(t, one, "apply"); r.Code != 0 {
		t.Fatalf("apply: got %v, want exit code 0", r)
	}
	n.fill(t)
	n.until(t, one, []string{"DEAD LETTERS in " + nightDead + ": 5"}, "status")
	n.console = n.openConsole(t, one)
	n.console.calm(t)

	if err := n.Kill(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	r := n.until(t, one, []string{"node-down", "rabbit@n3", "quorum-offline"}, "doctor")
	if strings.Contains(r.Stdout, "quorum-lost") {
		t.Errorf("doctor with a majority: got\n%s\nwant no finding quorum-lost", r)
	}
	n.until(t, one, []string{"DEAD LETTERS in " + nightDead + ": 5"}, "status")
	n.console.oneDown(t)

	if err := n.Kill(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	n.lost(t, one)
	n.console.lost(t)

	for _, i := range []int{0, 2} {
		suite.Docker(t, "start", n.Container(i))
	}
	for _, i := range []int{0, 2} {
		if err := n.WaitReady(t.Context(), i); err != nil {
			t.Fatalf("%v: %v; its log ends with:\n%s", i, err, suite.Docker(t, "logs", "--tail", "80", n.Container(i)))
		}
	}
	n.until(t, one, []string{"DEAD LETTERS in " + nightDead + ": 5"}, "status")
	n.until(t, one, []string{"examined 5 of 5"}, "requeue", "--queue", nightDead, "--dry-run")
	n.console.calm(t)
}

// lost runs every command that counts messages while only one of three nodes is running.
func (n *night) lost(t *testing.T, one int) {
	t.Helper()
	r := n.until(t, one, []string{"quorum-lost", "queue-down", nightClassic}, "doctor")
	if first := strings.Index(r.Stdout, "CRITICAL"); !strings.HasPrefix(r.Stdout[first:], "CRITICAL quorum-lost") {
		t.Errorf("doctor: got\n%s\nwant quorum-lost as the first critical finding", r)
	}
	for _, args := range [][]string{{"status"}, {"status", "--amqp-only"}} {
		r := n.until(t, one, []string{"unknown"}, args...)
		if r.Code != 2 {
			t.Errorf("%v: got exit code %d, want 2", args, r.Code)
		}
		if strings.Contains(r.Stdout, "nothing waiting") {
			t.Errorf("%v: got\n%s\nwant no \"nothing waiting\" while the count is unknown", args, r)
		}
	}
	if r := n.rabbitdelay(t, one, "trace", "some-id"); r.Code != 2 || strings.Contains(r.Stdout, "it is empty") {
		t.Errorf(`trace: got %s, want exit code 2 and no "it is empty"`, r)
	}
	for _, args := range [][]string{{"plan"}, {"plan", "--json"}} {
		r := n.rabbitdelay(t, one, args...)
		if !strings.Contains(r.Stdout, nightDead) || !strings.Contains(r.Stdout, "unknown") && !strings.Contains(r.Stdout, "unavailable") || r.Code == 0 {
			t.Errorf("%v: got %s, want an exit code other than 0 and an output that reports %s as unknown or unavailable", args, r, nightDead)
		}
	}
	for _, args := range [][]string{
		{"requeue", "--queue", nightDead, "--dry-run"}, {"discard", "--queue", nightDead, "--no-save", "--dry-run"},
		{"requeue", "--queue", nightClassic, "--dry-run"}, {"peek", "--queue", nightDead},
		{"destroy", "--layout", "delay.bucket.r3", "--force", "--yes"},
	} {
		if r := n.rabbitdelay(t, one, args...); r.Code != 1 || strings.Contains(r.Stdout, "examined 0 of 0") {
			t.Errorf(`%v: got %s, want exit code 1 and no "examined 0 of 0" in it`, args, r)
		}
	}
}
