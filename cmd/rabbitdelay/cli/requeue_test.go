package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// deadLetters are n messages that died in a queue.
func deadLetters(queue string, n int, reason string) (list []amqp.Publishing) {
	for i := range n {
		list = append(list, amqp.Publishing{
			MessageId: fmt.Sprintf("%s-%d", queue, i), Body: []byte("body"),
			Headers: amqp.Table{amqpx.HeaderReason: reason, amqpx.HeaderQueue: queue, amqpx.HeaderError: "card rejected", "n": fmt.Sprint(i)},
		})
	}
	return list
}

func TestRequeue(t *testing.T) {
	b := newByHand(t)
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", append(deadLetters("q", 3, "rejected"), deadLetters("gone", 2, "attempts")...)...)
	before := len(b.Queues())

	code, stdout, stderr := b.run(t, "requeue", "--queue", "q.dead")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "give --yes") {
		t.Errorf("without --yes: exit %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--dry-run")
	if code != 2 || stderr != "" || !strings.Contains(stdout, "dry run: q.dead: looked at 5 of 5 messages") ||
		!strings.Contains(stdout, "        3 would be sent to q\n        2 would stay, for gone: the destination does not exist\n") {
		t.Errorf("dry run: exit %d, %q\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--yes", "--header", "n=1", "--destination", "q")
	if code != 0 || stderr != "" || !strings.Contains(stdout, ", 1 chosen\n        1 sent to q\n") {
		t.Errorf("one: exit %d, %q\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--yes", "--json")
	var got requeued
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 2 || stderr != "" || got.Queue != "q.dead" || got.Sent != 2 || got.Stayed != 2 || len(got.Results) != 2 {
		t.Errorf("--json: exit %d, %q, %v\n%s", code, stderr, err, stdout)
	}
	if q, _ := b.Queue("q.dead"); q.Ready != 2 {
		t.Errorf("%d dead letters are left", q.Ready)
	}
	if q, _ := b.Queue("q"); q.Ready != 3 {
		t.Errorf("%d messages came", q.Ready)
	}
	if after := b.Queues(); len(after) != before {
		t.Errorf("requeue declared queues: %v", after)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--yes", "--to-queue", "q", "--limit", "1")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "looked at 1 of 2 messages") {
		t.Errorf("elsewhere: exit %d, %q\n%s", code, stderr, stdout)
	}
}

// Dead letters of tasks go by the database.
func TestRequeueTasks(t *testing.T) {
	b := newByHand(t)
	db := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	for _, args := range [][]string{
		{"migrate", "--db", db},
		{"tasks", "add", "--db", db, "--queue", "q", "--delay", "1h", "--id", "q-0"},
		{"tasks", "add", "--db", db, "--queue", "q", "--delay", "1h", "--id", "q-1"},
		{"tasks", "cancel", "--db", db, "q-1"},
	} {
		if code, _, stderr := run(t, "", args...); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, stderr)
		}
	}
	letters := deadLetters("q", 3, "attempts")
	for _, l := range letters {
		l.Headers[amqpx.HeaderVersion] = int64(1)
	}
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", letters...)
	code, stdout, _ := b.run(t, "requeue", "--queue", "q.dead", "--yes")
	if code != 2 || !strings.Contains(stdout, "3 stayed, for q: the row of its task decides; give the database") {
		t.Errorf("without a database: exit %d\n%s", code, stdout)
	}
	code, stdout, stderr := b.run(t, "requeue", "--queue", "q.dead", "--yes", "--db", db)
	lines := strings.Split(stdout, "\n")
	if code != 2 || stderr != "" || len(lines) != 5 || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "        1 removed, because their tasks are over") }) {
		t.Errorf("exit %d, %s\n%s", code, stderr, stdout)
	}
	if q, _ := b.Queue("q"); q.Ready != 1 { // q-0 is pending, and the message has its version
		t.Errorf("%d messages came", q.Ready)
	}
}

// Reviving a task takes its dead letter away, and no other message.
func TestReviveRemovesTheDeadLetter(t *testing.T) {
	b := newByHand(t)
	db := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	code, _, stderr := run(t, "", "migrate", "--db", db)
	for i := range 3 {
		if code == 0 {
			code, _, stderr = run(t, "", "tasks", "add", "--db", db, "--queue", "q", "--delay", "1h", "--id", fmt.Sprint("q-", i))
		}
	}
	if code != 0 {
		t.Fatal(stderr)
	}
	letters := deadLetters("q", 4, "attempts") // q-3 is no task's
	for _, l := range letters[:3] {
		l.Headers[amqpx.HeaderVersion] = int64(1)
	}
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", letters...)
	fail := func(id string) {
		t.Helper()
		x, _, err := config.OpenDB(config.URL(db))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = x.Close() }()
		if _, err := x.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE id = ?", id); err != nil {
			t.Fatal(err)
		}
	}
	fail("q-0")
	if code, stdout, stderr := b.run(t, "tasks", "revive", "q-0", "--db", db); code != 0 || !strings.Contains(stdout, "q-0: pending") || !strings.Contains(stdout+stderr, "1 dead letter without an effect any more removed from q.dead") {
		t.Errorf("by its id: exit %d, %q, %q", code, stdout, stderr)
	}
	fail("q-1")
	if code, stdout, stderr := b.run(t, "tasks", "revive", "--queue", "q", "--yes", "--db", db); code != 0 || !strings.Contains(stdout+stderr, "1 dead letter without an effect any more removed from q.dead") {
		t.Errorf("by a filter: exit %d, %q, %q", code, stdout, stderr)
	}
	if q, _ := b.Queue("q.dead"); q.Ready != 2 {
		t.Errorf("%d dead letters are left, expected the two that were not revived", q.Ready)
	}
	if q, _ := b.Queue("q"); q.Ready != 0 {
		t.Errorf("%d messages came", q.Ready)
	}
	fail("q-2")
	b.Close()
	if code, stdout, stderr := b.run(t, "tasks", "revive", "q-2", "--db", db); code != 0 || !strings.Contains(stdout, "q-2: pending") {
		t.Errorf("without a broker: exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestRequeueUsage(t *testing.T) {
	b := newByHand(t)
	for args, want := range map[string]string{
		"":                                       "give one of --queue and --parked",
		"--queue q --parked":                     "give one of --queue and --parked",
		"--queue q --to-queue a --to-exchange b": "give one destination",
		"--queue q --routing-key b":              "--routing-key is for --to-exchange",
		"--queue q --in-flight 0":                "expected 1 to 1000",
		"--queue q --in-flight 2000":             "1 to 1000",
		"--queue q --header n":                   "expected name=value",
		"--queue q --to-queue q":                 "another queue",
		"--queue delay.bucket.1s":                "on their way",
		"--queue q --rate -1":                    "0 or more",
		"--queue q --limit -1":                   "0 or more",
		"--queue nowhere":                        "no queue 'nowhere'",
		"--queue q --db sqlite:/none/x.db":       "database",
	} {
		code, stdout, stderr := b.run(t, strings.Fields("requeue --yes "+args)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %q, %q; want %q", args, code, stdout, stderr, want)
		}
	}
}

// A dry run that is refused says why, and nothing of messages at which it looked.
func TestRequeueDryRunRefused(t *testing.T) {
	b := newByHandOf(t, amqptest.Options{Version: "4.0.5"})
	b.fillWith(t, "q.dead", deadLetters("q", 3, "rejected")...)
	code, stdout, stderr := b.run(t, "requeue", "--queue", "q.dead", "--dry-run")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "broker.management_url") || strings.Contains(stderr, "again") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

// A revive that revives nothing leaves the broker alone.
func TestReviveOfNothing(t *testing.T) {
	b := newByHand(t)
	db := "sqlite:" + tasksDB(t)
	for args, code := range map[string]int{"none": 1, "--queue q": 1, "--queue q --yes --batch 9999": 1, "--queue q --yes": 0} {
		got, stdout, stderr := b.run(t, append([]string{"tasks", "revive", "--db", db}, strings.Fields(args)...)...)
		if got != code || b.Calls("connection.open") > 0 {
			t.Errorf("%s: exit %d, %d connections\n%s%s", args, got, b.Calls("connection.open"), stdout, stderr)
		}
	}
}

// What cannot be read stays, is named, and goes when somebody discards it.
func TestDiscard(t *testing.T) {
	b := newByHand(t)
	bad := deadLetters("q", 1, "rejected")
	bad[0].MessageId, bad[0].Headers["ids"] = "bad", make([]any, 9000)
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", append(deadLetters("q", 2, "rejected"), bad...)...)

	if code, stdout, stderr := b.run(t, "peek", "--queue", "q.dead"); code != 0 || !strings.Contains(stdout, "3. bad\n   reason   unreadable\n") {
		t.Errorf("peek: exit %d, %q\n%s", code, stderr, stdout)
	}
	for _, c := range []struct {
		args, says string
		code       int
		left       int
	}{
		{"requeue --yes", "1 stayed, for an unknown destination: its headers cannot be read", 2, 1},
		{"consume --count 1 --timeout 20s", "message bad cannot be read, and the message goes back to the queue", 1, 1},
		{"discard", "give --yes", 1, 1},
		{"discard --reason rejected --dry-run", "looked at 1 of 1 messages", 0, 1},
		{"discard --reason unreadable --dry-run", "1 would be discarded", 0, 1},
		{"discard --reason unreadable --yes", "1 discarded", 0, 0},
	} {
		code, stdout, stderr := b.run(t, append(strings.Fields(c.args), "--queue", "q.dead")...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) || b.ready(t, "q.dead") != c.left {
			t.Errorf("%s: exit %d, %d left, %q\n%s", c.args, code, b.ready(t, "q.dead"), stderr, stdout)
		}
	}
}
