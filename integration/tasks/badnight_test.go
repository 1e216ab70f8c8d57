package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// update makes the test replace the output that docs/operations.md shows with what the commands actually print.
var update = flag.Bool("update-operations", false, "update the command output in docs/operations.md")

const operationsPage = "../../docs/operations.md"

// night is the broker, database and settings of a shop after a night with many failures.
type night struct {
	*suite.Vhost

	db     businessDB
	folder string
	client *amqpx.Client
	store  *schedule.Store
	start  time.Time
}

// The commands of docs/operations.md run in their order after a bad night, and print what the page
// shows.
func TestABadNight(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it waits for the management API, whose counts are up to 5 seconds old")
	}
	versions := tier.Sample(t.Name(), []string{"4.0", "4.3"})
	if *update {
		versions = []string{"4.3"}
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n := newNight(t, broker.Shared(t, broker.Options{Version: version, Management: true}))
			n.happens(t)
			n.readPage(t)
		})
	}
}

func newNight(t *testing.T, b *broker.Broker) *night {
	t.Helper()
	if b.ManagementURL() == "" {
		t.Skipf("skipped: the broker at AMQP_URL is used without its management API; set %s", broker.EnvManagementURL)
	}
	n := &night{Vhost: suite.NewVhost(t, b), db: openSQLite(t), folder: t.TempDir(), start: time.Now()}
	suite.MustSucceed(t, idempotency.Migrate(t.Context(), n.db.DB))
	suite.MustSucceed(t, schedule.Migrate(t.Context(), n.db.DB))
	text := fmt.Sprintf(`broker:
  url: %s
  management_url: %s
database:
  url: %s
delay:
  previous:
    - resolution: 100ms
destinations:
  - queue: orders.expire
  - queue: orders.refund
`, n.URL, b.ManagementURL(), cliURL(t, n.db))
	suite.MustSucceed(t, os.WriteFile(filepath.Join(n.folder, "shop.yaml"), []byte(text), 0o600))
	if r := n.run(t, "apply"); r.Code != 0 {
		t.Fatalf("apply: got %v, want exit code 0", r)
	}
	n.client = suite.OpenClient(t, amqpx.Config{URL: n.URL})
	var err error
	n.store, err = schedule.New(n.db.DB, n.client, schedule.Config{PollInterval: 10 * time.Millisecond})
	suite.MustSucceed(t, err)
	return n
}

// run runs a command from the page with the shop's settings.
func (n *night) run(t *testing.T, args ...string) suite.Ran {
	t.Helper()
	return suite.RunCLI(t.Context(), append(args, "-f", filepath.Join(n.folder, "shop.yaml"))...)
}

// send sends count messages. Their ids start with the given id.
func (n *night) send(t *testing.T, client *amqpx.Client, count int, id, queue string, delay time.Duration) {
	t.Helper()
	msgs := make([]amqpx.Message, count)
	for i := range msgs {
		msgs[i] = amqpx.Message{
			ID: fmt.Sprintf("%s-%d", id, i+1), Queue: queue, Delay: delay,
			Body: []byte(fmt.Sprintf(`{"order":%d}`, i+1)), ContentType: "application/json",
		}
	}
	suite.MustSucceed(t, client.SendBatch(t.Context(), msgs))
}

// consume handles a queue's messages until done reports true.
func (n *night) consume(t *testing.T, queue string, h amqpx.Handler, done func() bool, opts ...amqpx.ConsumeOption) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.client.Consume(ctx, queue, h, opts...) }()
	suite.Eventually(t, "the consumer of "+queue+" is done", done)
	cancel()
	suite.MustSucceed(t, <-ended)
}

func (n *night) count(t *testing.T, queue string) int {
	t.Helper()
	ch := n.Channel(t)
	defer func() { suite.MustSucceed(t, ch.Close()) }()
	return countOn(t, ch, queue)
}

func countOn(t *testing.T, ch *amqp.Channel, queue string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	suite.MustSucceed(t, err)
	return q.Messages
}

// counted waits until the management API, whose counts are some seconds old, shows the actual number of messages in
// each queue and no consumers of the destinations. It also waits until clients have removed the temporary bindings that
// they add on brokers before RabbitMQ 4.3.
func (n *night) counted(t *testing.T) {
	t.Helper()
	ch := n.Channel(t)
	defer func() { suite.MustSucceed(t, ch.Close()) }()
	ours := []string{"orders.expire", "orders.expire.dead", "delay.parked", "orders.refund"}
	suite.Eventually(t, "the management API shows the actual counts", func() bool {
		current, err := n.Mgmt.Inspect(t.Context(), topology.Topology{})
		suite.MustSucceed(t, err)
		for queue, q := range current.Queues {
			if q.Messages != int64(countOn(t, ch, queue)) || q.Consumers > 0 && slices.Contains(ours, queue) {
				return false
			}
		}
		return !slices.ContainsFunc(current.Bindings, func(b topology.Binding) bool { return b.Arguments[argument.Binder] != nil })
	})
}

func (n *night) happens(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	// The previous release had a resolution of 100 ms, and sent reminders for the next day.
	old, err := dlx.NewBucket(dlx.BucketConfig{Resolution: 100 * time.Millisecond})
	suite.MustSucceed(t, err)
	n.send(t, suite.OpenClient(t, amqpx.Config{URL: n.URL, Strategy: old}), 3, "reminder", "orders.expire", 20*time.Hour)
	n.send(t, n.client, 12, "waiting", "orders.expire", 4*time.Hour)

	// Refunds are waiting for their delay when an operator deletes their queue.
	n.send(t, n.client, 50, "refund", "orders.refund", 2*time.Second)
	_, err = n.Channel(t).QueueDelete("orders.refund", false, false, false)
	suite.MustSucceed(t, err)

	// 300 orders fail until no attempts are left, 150 are rejected, and 50 expire because of
	// a policy that an operator tried.
	n.send(t, n.client, 300, "card", "orders.expire", 0)
	n.consume(t, "orders.expire", func(context.Context, *amqpx.Delivery) error { return errors.New("payment provider: 503") },
		func() bool { return n.count(t, "orders.expire.dead") == 300 }, amqpx.WithRetry(topology.Retry{MaxAttempts: 1}), amqpx.WithConcurrency(1))
	n.send(t, n.client, 150, "address", "orders.expire", 0)
	n.consume(t, "orders.expire", func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(errors.New("no such address")) },
		func() bool { return n.count(t, "orders.expire.dead") == 450 }, amqpx.WithConcurrency(50))
	n.Manage(t, http.MethodPut, "/api/policies/"+n.Name+"/tried", map[string]any{
		"pattern":    "^orders.expire$",
		"definition": map[string]any{"message-ttl": 1},
		"apply-to":   "queues",
	})
	n.send(t, n.client, 50, "late", "orders.expire", 0)
	suite.Eventually(t, "50 messages have expired", func() bool { return n.count(t, "orders.expire.dead") == 500 })
	n.Manage(t, http.MethodDelete, "/api/policies/"+n.Name+"/tried", nil)

	// One order is cancelled, one fails, and one is sent twice.
	suite.MustSucceed(t, n.store.Schedule(ctx, schedule.NoTx, schedule.Task{
		ID: "order-42-expire", Queue: "orders.expire", DeliverAt: time.Now().Add(30 * time.Minute),
	}))
	suite.MustSucceed(t, n.store.Cancel(ctx, schedule.NoTx, "order-42-expire"))
	effect := func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }
	var handled atomic.Int64
	n.send(t, n.client, 1, "order-7", "orders.expire", 0)
	n.send(t, n.client, 1, "order-7", "orders.expire", 0)
	once := idempotency.Handler(n.db.DB, effect)
	n.consume(t, "orders.expire", func(ctx context.Context, d *amqpx.Delivery) error {
		err := once(ctx, d)
		handled.Add(1)
		return err
	}, func() bool { return n.count(t, "orders.expire") == 0 && handled.Load() == 2 }, amqpx.WithConcurrency(1))
	suite.Eventually(t, "50 messages are parked", func() bool { return n.count(t, "delay.parked") == 50 })
}

// documentedCommand matches a command on the page and its output.
var documentedCommand = regexp.MustCompile("(?s)```console\n\\$ rabbitdelay ([^\n]*)\n(.*?)```")

// readPage runs the commands and compares their output.
func (n *night) readPage(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile(operationsPage)
	suite.MustSucceed(t, err)
	out := documentedCommand.ReplaceAllStringFunc(string(page), func(block string) string {
		m := documentedCommand.FindStringSubmatch(block)
		n.counted(t)
		r := n.run(t, suite.ShellWords(m[1])...)
		got := n.asPrinted(r.Stdout + r.Stderr)
		if printedOn(m[2], got) {
			return block
		}
		if !*update {
			t.Errorf("rabbitdelay %s (exit code %d) printed\n%s\nwant the output in docs/operations.md\n%s\nmasked: got\n%s\nwant\n%s", m[1], r.Code, got, m[2], masked(got), masked(m[2]))
		}
		return "```console\n$ rabbitdelay " + m[1] + "\n" + got + "```"
	})
	if *update {
		suite.MustSucceed(t, os.WriteFile(operationsPage, []byte(out), 0o644))
	}
}

// printedOn reports whether a command printed what the page shows. A line "…" on the page stands
// for omitted lines.
func printedOn(page, printed string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(masked(page)), "\n…\n", `\n(?s:.*\n)?`)
	return regexp.MustCompile("^" + pattern + "$").MatchString(masked(printed))
}

// The page may omit lines, and must not differ in any other way.
func TestPrintedOnPage(t *testing.T) {
	t.Parallel()
	const printed = "due 2026-11-22T19:30:45.719Z (in 3m)\nlooked at (all) in 3ms\n- the table\n\n3 findings\n"
	for page, want := range map[string]bool{
		printed: true,
		"due 2026-11-22T20:00:00.000Z (in 29m46s)\n…\n3 findings\n":             true,
		"due 2026-11-22T20:00:00.000Z (in 29m46s)\nlooked at (all) in 5ms\n…\n": true,
		"due 2026-11-22T20:00:00.000Z (in 29m46s)\n…\n- another table\n":        false,
		"due 2026-11-22T20:00:00.000Z (in 29m46s)\n3 findings\n":                false,
		"…\n": false, // the page must show the first line
	} {
		if printedOn(page, printed) != want {
			t.Errorf("printedOn = %t for the page\n%s\nwant %t", !want, page, want)
		}
	}
}

// asPrinted replaces the names that are specific to the test with those on the page.
func (n *night) asPrinted(text string) string {
	return strings.NewReplacer(n.Name, "shop", n.folder+"/", "", n.db.dsn, "shop.db").Replace(text)
}

// masked replaces values that differ from run to run: times, ages, versions, sizes, and the number of spaces that align
// columns.
func masked(text string) string {
	for _, m := range []struct{ pattern, with string }{
		{`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|Z|[+-]\d\d:\d\d)?`, "INSTANT"},
		{`\b\d\d:\d\d:\d\d(\.\d+)?\b`, "INSTANT"},
		{`\b(\d+(\.\d+)?(d|h|ms|µs|m|s) ?)+\b`, "DURATION"},
		{`\b\d+(\.\d+)? s\b`, "DURATION"},
		{`DURATION ?(behind|ahead of) this`, "DURATION from this"},
		{`\(by [^()\n]+\)`, "(by the narrowest way)"}, // which way measures the clock most precisely varies from run to run
		{`\b\d+\.\d+\.\d+\b`, "VERSION"},
		{`[0-9a-f]{8}-[0-9a-f-]{27}`, "UUID"},
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`card-\d+`, "card-N"}, // the first dead letter waits until its queue is declared, and others may overtake it
		{`\{"order":\d+\}`, "ORDER"},
		{`(?m)^rabbitdelay (consume|declare|publish) .*\n`, ""}, // connections come and go
		{`[ \t]+`, " "},
		{`-{3,}`, "---"},
	} {
		text = regexp.MustCompile(m.pattern).ReplaceAllString(text, m.with)
	}
	return text
}
