package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// One command answers why a task or a message has not happened, over AMQP and with a
// file of SQLite.
func TestTrace(t *testing.T) {
	b := newByHandOf(t, amqptest.Options{Version: "4.3.0"})
	db := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	t.Setenv("RABBITDELAY_DATABASE_URL", db)
	t.Setenv("RABBITDELAY_DELAY_BUCKET_RADICES", "2") // a layout of few queues
	t.Setenv("RABBITDELAY_DELAY_BUCKET_RESOLUTION", "1s")
	for _, args := range [][]string{
		{"migrate"}, {"apply"},
		{"tasks", "add", "--id", "late", "--queue", "orders"}, {"tasks", "add", "--id", "gone", "--queue", "orders", "--delay", "1h"},
		{"tasks", "cancel", "gone"},
	} {
		if code, _, stderr := b.run(t, args...); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, stderr)
		}
	}
	b.fillWith(t, "payments.dead", amqp.Publishing{MessageId: "payment", Headers: amqp.Table{
		amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: "payments", amqpx.HeaderError: "card expired",
	}})
	park(t, b, "parked")
	for id, want := range map[string]string{
		"late": "a relay", "gone": "it was cancelled", "payment": "its handler rejected it, the last error: card expired",
		"parked": "it is parked in delay.parked", "other": "nothing is known of this id in what could be seen",
	} {
		code, stdout, stderr := b.run(t, "trace", id, "--queue", "payments.dead", "--json")
		var got struct {
			Why   string
			Found bool
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatalf("%s: %v, output %s, errors %s", id, err, stdout, stderr)
		}
		// 2, because the management API did not answer.
		if code != 2 || !strings.Contains(got.Why, want) || got.Found != (id != "other") {
			t.Errorf("%s: exit %d, found %v, %s; want %s", id, code, got.Found, got.Why, want)
		}
		if code, stdout, _ := b.run(t, "trace", id, "--queue", "payments.dead"); code != 2 || !strings.HasPrefix(stdout, id+": ") || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, output %s", id, code, stdout)
		}
	}
	if code, stdout, stderr := b.run(t, "trace", ""); code != 1 || stdout != "" || !strings.Contains(stderr, "the id is empty") {
		t.Errorf("an empty id: exit %d, %s%s", code, stdout, stderr)
	}
	if code, _, stderr := b.run(t, "trace"); code != 1 || !strings.Contains(stderr, "expected one message id or task id") {
		t.Errorf("without an id: exit %d, %s", code, stderr)
	}
}

// park sends a message, takes its destination away, and waits until it is parked.
func park(t *testing.T, b *byHand, id string) {
	t.Helper()
	const queue = "unbound"
	for came := 1; came > 0; { // on a busy machine it may come before the queue is gone
		if code, _, stderr := b.run(t, "send", "--queue", queue, "--delay", "1s", "--id", id); code != 0 {
			t.Fatalf("send: exit %d, %s", code, stderr)
		}
		var err error
		if came, err = b.channel(t).QueueDelete(queue, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	for {
		if q, _ := b.Queue("delay.parked"); q.Ready == 1 {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the message was not parked")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
