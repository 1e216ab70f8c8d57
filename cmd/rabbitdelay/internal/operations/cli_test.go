package operations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// cliOn runs the command line against the shared broker.
func cliOn(t *testing.T, args ...string) suite.Ran {
	t.Helper()
	url := broker.Shared(t, broker.Options{}).URL()
	return suite.RunCLI(t.Context(), append(args, "--url", url)...)
}

var consumeKeys = []string{"received", "early", "lateness_ms"}

func TestCLISendAndConsume(t *testing.T) {
	t.Parallel()
	queue := suite.NewQueue(t)
	sent := cliOn(t, "send", "--queue", queue, "--delay", "300ms", "--spread", "1s", "--count", "500", "--id", "x",
		"--header", "a=b", "--body", `{"order":42}`, "--content-type", "application/json", "--json")
	m := sent.Last(t, "sent", "confirmed", "unknown", "seconds", "strategy")
	if sent.Code != 0 || len(sent.Lines()) != 1 || m["sent"] != 500.0 || m["confirmed"] != 500.0 || m["strategy"] != "bucket" {
		t.Fatalf(`send: got %v, want exit code 0, 1 line, sent = 500, confirmed = 500 and strategy = "bucket"`, sent)
	}

	// consume receives exactly the requested number of messages, and the others stay in the queue unchanged.
	ids := map[string]bool{}
	for _, n := range []int{120, 1, 379} {
		got := cliOn(t, "consume", "--queue", queue, "--count", fmt.Sprint(n), "--timeout", "30s", "--json")
		m := got.Last(t, consumeKeys...)
		if got.Code != 0 || m["received"] != float64(n) || m["early"] != 0.0 || len(got.Lines()) != n+1 {
			t.Fatalf("consume: got %v, want exit code 0, received = %d, early = 0 and %d lines", got, n, n+1)
		}
		if l := m["lateness_ms"].(map[string]any); len(l) != 3 || l["max"].(float64) < l["p50"].(float64) {
			t.Errorf("lateness: got %v, want three figures and a max of at least the p50 of %v", l, l["p50"].(float64))
		}
		for _, line := range got.Lines()[:n] {
			var d struct {
				ID, Due, Received, Body string
				Lateness                int64 `json:"lateness_ms"`
				Attempt                 int
			}
			if err := json.Unmarshal([]byte(line), &d); err != nil || d.Attempt != 1 || d.Body != `{"order":42}` || d.Lateness < 0 {
				t.Fatalf(`line %s: got %v, want no error, Attempt = 1, Body = "{"order":42}" and Lateness >= 0`, line, err)
			}
			due, err := time.Parse(time.RFC3339Nano, d.Due)
			if err != nil {
				t.Error(err)
			}
			if at, err := time.Parse(time.RFC3339Nano, d.Received); err != nil || at.Sub(due).Milliseconds() != d.Lateness {
				t.Errorf("line %s: got %v, want no error, and a lateness of %v ms between the two times", line, err, d.Lateness)
			}
			if ids[d.ID] {
				t.Errorf("message %s was received twice, want once", d.ID)
			}
			ids[d.ID] = true
		}
	}
	for i := range 500 {
		if !ids[fmt.Sprintf("x-%d", i+1)] {
			t.Fatalf("message x-%d did not arrive, want all of x-1 to x-500", i+1)
		}
	}

	empty := cliOn(t, "consume", "--queue", queue, "--count", "1", "--timeout", "1s", "--json", "--quiet")
	if m := empty.Last(t, consumeKeys...); empty.Code != 3 || m["received"] != 0.0 || len(empty.Lines()) != 1 {
		t.Errorf("consume from an empty queue: got %v, want exit code 3, received = 0 and 1 line", empty)
	}
}

func TestCLISendToExchangeAtATime(t *testing.T) {
	t.Parallel()
	queue := suite.NewQueue(t)
	client := suite.OpenClient(t, amqpx.Config{})
	if err := client.Send(t.Context(), amqpx.Message{Queue: queue}); err != nil { // declares the queue
		t.Fatal(err)
	}
	ch := suite.RawChannel(t)
	if err := ch.QueueBind(queue, queue, "amq.direct", false, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := suite.DeleteQueue(t, "delay.route.amq.direct:"+queue); err != nil {
			t.Error(err)
		}
	})
	at := time.Now().Add(1500 * time.Millisecond).Truncate(time.Millisecond)
	sent := cliOn(t, "send", "--exchange", "amq.direct", "--routing-key", queue, "--at", at.Format(time.RFC3339Nano), "--body", "x")
	if sent.Code != 0 || !strings.HasPrefix(sent.Stdout, "1 of 1 message confirmed in ") {
		t.Fatalf(`send: got %v, want exit code 0 and an output that begins with "1 of 1 message confirmed in "`, sent)
	}
	got := cliOn(t, "consume", "--queue", queue, "--count", "2", "--timeout", "30s", "--json")
	if got.Code != 0 || !strings.Contains(got.Stdout, `"due":"`+at.UTC().Format("2006-01-02T15:04:05.000Z07:00")+`"`) {
		t.Errorf("consume: got %v, want exit code 0 and a message that is due at %s", got, at.UTC())
	}
}

func TestCLISendFails(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"does not exist; declare the exchange first": {"--exchange", "no.such.exchange", "--routing-key", "k", "--delay", "1s"},
		"exceeds":                  {"--queue", "q", "--delay", "1000d"},
		"needs up to":              {"--queue", strings.Repeat("q", 250), "--delay", "1s"},
		"belongs to the delay str": {"--queue", "delay.bucket.1s", "--delay", "1s"},
	} {
		got := cliOn(t, append([]string{"send", "--count", "3", "--json"}, args...)...)
		m := got.Last(t, "sent", "confirmed", "unknown", "seconds", "strategy")
		var e struct{ Error string }
		lines := strings.Split(strings.TrimSpace(got.Stderr), "\n") // the last line, after those about declarations
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil {
			t.Errorf("case %q: the last line of Stderr is not JSON: %v\n%s", want, err, got)
		}
		if got.Code != 1 {
			t.Errorf("case %q: got exit code %d, want 1\n%s", want, got.Code, got)
		}
		for _, key := range []string{"confirmed", "sent"} {
			if m[key] != 0.0 {
				t.Errorf("case %q: %s is %v, want 0\n%s", want, key, m[key], got)
			}
		}
		if !strings.Contains(e.Error, want) {
			t.Errorf("the error is %q, want it to contain %q", e.Error, want)
		}
	}
}

// managed writes a settings file for the shared broker with its management API, and returns the file's name.
func managed(t *testing.T, yaml string) (file string) {
	t.Helper()
	b := broker.Shared(t, broker.Options{Management: true})
	settings := fmt.Sprintf("broker:\n  url: %q\n", b.URL())
	if m := b.ManagementURL(); m != "" {
		settings += fmt.Sprintf("  management_url: %q\n", m)
	}
	file = filepath.Join(t.TempDir(), "delays.yaml")
	if err := os.WriteFile(file, []byte(settings+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCLIPlanApplyDestroy(t *testing.T) {
	t.Parallel()
	prefix := fmt.Sprintf("cli.%d", time.Now().UnixNano())
	file := managed(t, fmt.Sprintf(`
delay: {prefix: %[1]s, bucket: {radices: [3, 3]}}
destinations: [{queue: %[1]s.orders}]
`, prefix))
	cmd := func(args ...string) suite.Ran { return suite.RunCLI(t.Context(), append(args, "-f", file)...) }
	t.Cleanup(func() {
		suite.RunCLI(context.Background(), "destroy", "--yes", "--destinations", "--force", "--messages", "1000", "-f", file)
	})

	// There are 2 x 2 bucket queues, the parked queue, and orders with its dead-letter queue. The exchanges are parked,
	// deliver, entry and level-0.
	const queues, exchanges = 4 + 1 + 2, 4
	plan := cmd("plan", "--json")
	var p struct{ Create, Same, Conflict int }
	if err := json.Unmarshal([]byte(plan.Stdout), &p); err != nil || plan.Code != 2 || p.Same != 0 || p.Conflict != 0 || p.Create <= queues+exchanges {
		t.Fatalf("plan --json: got %v, %v, want exit code 2, same = 0, conflict = 0 and create > %d", plan, err, queues+exchanges)
	}
	create := float64(p.Create)
	if human := cmd("plan"); human.Code != 2 || !strings.Contains(human.Stdout, prefix+".bucket.r3x3.600ms") {
		t.Errorf("plan: got %v, want exit code 2 and %v in the output", human, prefix+".bucket.r3x3.600ms")
	}
	keys := []string{"created", "existed", "failed", "not_tried", "unknown", "source", "seconds"}
	if apply := cmd("apply", "--json"); apply.Code != 0 || apply.Last(t, keys...)["created"] != create {
		t.Fatalf("apply --json: got %v, want exit code 0 and created = %v", apply, create)
	}
	if apply := cmd("apply", "--json"); apply.Code != 0 || apply.Last(t, keys...)["created"] != 0.0 || apply.Last(t, keys...)["existed"] != create {
		t.Fatalf("apply --json: got %v, want exit code 0, created = 0 and existed = %v", apply, create)
	}
	if plan := cmd("plan"); plan.Code != 0 {
		t.Fatalf("plan: got %v, want exit code 0", plan)
	}

	// Delay queues of the other type have different names, but a destination queue with the same name is a conflict.
	conflict := cmd("plan", "--queue-type", "classic")
	if conflict.Code != 1 {
		t.Errorf("plan with a conflict: exit code %d, want 1\n%s", conflict.Code, conflict)
	}
	if want := "2 objects exist on the broker with different arguments"; !strings.Contains(conflict.Stderr, want) {
		t.Errorf("plan with a conflict: got %s, want Stderr containing %q", conflict, want)
	}
	if conflict := cmd("apply", "--queue-type", "classic"); conflict.Code != 1 || !strings.Contains(conflict.Stderr, prefix+".orders") {
		t.Errorf("apply --queue-type classic: got %v, want exit code 1 and %v in the errors", conflict, prefix+".orders")
	}

	// destroy refuses to delete a queue that contains a message.
	if sent := cmd("send", "--queue", prefix+".orders", "--delay", "0s"); sent.Code != 0 {
		t.Fatalf("send --queue ...: got %v, want exit code 0", sent)
	}
	refused := cmd("destroy", "--json", "--yes", "--destinations")
	if m := refused.Last(t, destroyKeys...); refused.Code != 1 || m["deleted"] != 0.0 || !strings.Contains(refused.Stderr, "refused: 1 message in 1 queue,") {
		t.Fatalf(`destroy: got %v, want exit code 1, deleted = 0 and "refused: 1 message in 1 queue," in the errors`, refused)
	}
	if plan := cmd("plan"); plan.Code != 0 {
		t.Errorf("plan after a refused destroy: got %s, want exit code 0", plan)
	}
	forced := cmd("destroy", "--json", "--yes", "--destinations", "--force", "--messages", "1")
	// destroy deletes the declared objects, and the exchange that marks them as complete.
	if m := forced.Last(t, destroyKeys...); forced.Code != 0 || m["deleted"] != create+1 || m["messages_deleted"] != 1.0 {
		t.Fatalf("destroy --force: got %v, want exit code 0, deleted = %v and messages_deleted = 1", forced, create+1)
	}
	if again := cmd("plan", "--json"); again.Code != 2 || !strings.Contains(again.Stdout, fmt.Sprintf(`"create":%.0f,"same":0`, create)) {
		t.Errorf("plan --json: got %v, want exit code 2 and %v in the output", again, fmt.Sprintf(`"create":%.0f,"same":0`, create))
	}
}

// Without the management API, plan uses AMQP and prints a note about it.
func TestCLIPlanWithoutManagement(t *testing.T) {
	t.Parallel()
	prefix := fmt.Sprintf("cli.%d", time.Now().UnixNano())
	file := filepath.Join(t.TempDir(), "delays.yaml")
	yaml := fmt.Sprintf("broker: {management_url: 'http://127.0.0.1:1'}\ndelay: {prefix: %s, bucket: {radices: [2]}}\n", prefix)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	defer cliOn(t, "destroy", "--yes", "--force", "-f", file)
	for _, step := range []struct {
		command string
		code    int
	}{{"plan", 2}, {"apply", 0}, {"plan", 2}} {
		got := cliOn(t, step.command, "-f", file)
		if got.Code != step.code || !strings.HasPrefix(got.Stderr, "note: inspecting the broker over AMQP") {
			t.Fatalf(`%s: got %s, want Code = %v and Stderr beginning with "note: inspecting the broker over AMQP"`, step.command, got, step.code)
		}
	}
}

func TestCLIMigrate(t *testing.T) {
	t.Parallel()
	for _, kind := range []database.Kind{database.PostgreSQL, database.MariaDB, database.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			url := database.Shared(t, kind).URL()
			for range 2 {
				got := suite.RunCLI(t.Context(), "migrate", "--db", url, "--json")
				if m := got.Last(t, "database", "migrated"); got.Code != 0 || len(m["migrated"].([]any)) == 0 {
					t.Fatalf("migrate: got %v, want exit code 0 and at least one migration", got)
				}
			}
		})
	}
}
