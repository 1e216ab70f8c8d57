package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

// byHand is a broker in memory and the command line on it.
type byHand struct {
	*amqptest.Server
	url string
}

func newByHand(t *testing.T) *byHand {
	t.Helper()
	return newByHandOf(t, amqptest.Options{})
}

func newByHandOf(t *testing.T, o amqptest.Options) *byHand {
	t.Helper()
	srv := amqptest.NewServer(o)
	t.Cleanup(srv.Close)
	url, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	return &byHand{srv, url}
}

func (b *byHand) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return run(t, "", append(args, "--url", b.url)...)
}

// channel is that of another program.
func (b *byHand) channel(t *testing.T) *amqp.Channel {
	t.Helper()
	conn, err := b.Connect()
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

// fill declares a queue and puts messages into it.
func (b *byHand) fill(t *testing.T, queue string, n int) {
	t.Helper()
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		messages[i] = amqp.Publishing{MessageId: fmt.Sprint("m", i), Body: []byte("body")}
	}
	b.fillWith(t, queue, messages...)
}

func (b *byHand) fillWith(t *testing.T, queue string, messages ...amqp.Publishing) {
	t.Helper()
	ch := b.channel(t)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, m)
		if err != nil || !c.Wait() {
			t.Fatal(err)
		}
	}
}

// ready counts the messages of a queue, when nobody holds any.
func (b *byHand) ready(t *testing.T, queue string) int {
	t.Helper()
	q, ok := b.Queue(queue)
	if !ok || q.Unacked != 0 {
		t.Errorf("queue %s: %v, %+v", queue, ok, q)
	}
	return q.Ready
}

// full is a disk that takes so many lines.
type full struct {
	lines int
	strings.Builder
}

var errFull = errors.New("no space left on device")

func (f *full) Write(p []byte) (int, error) {
	if f.lines == 0 {
		return 0, errFull
	}
	f.lines--
	return f.Builder.Write(p)
}

func TestConsumeKeepsWhatItCannotPrint(t *testing.T) {
	for _, args := range [][]string{{}, {"--json"}, {"--count", "9"}, {"--count", "9", "--prefetch", "1"}} {
		b := newByHand(t)
		b.fill(t, "orders", 10)
		var errs strings.Builder
		out := &full{lines: 4}
		code := Run(t.Context(), append(args, "consume", "--queue", "orders", "--url", b.url), strings.NewReader(""), out, &errs)
		if n := b.ready(t, "orders"); code != 1 || n != 6 || !strings.Contains(errs.String(), "the message goes back to the queue: no space left on device") {
			t.Errorf("%v: exit %d, %d messages left after 4 of 10 were printed, errors %s", args, code, n, errs.String())
		}
	}
}

// The broker hands out no more than are wanted: each return may count towards a
// delivery limit.
func TestConsumeTouchesNoOthers(t *testing.T) {
	b := newByHand(t)
	b.fill(t, "orders", 30)
	code, stdout, stderr := b.run(t, "consume", "--queue", "orders", "--count", "12", "--prefetch", "5")
	if n := b.ready(t, "orders"); code != 0 || n != 18 || strings.Count(stdout, "\n") != 13 || stderr != "" {
		t.Errorf("exit %d, %d left, output %s, errors %s", code, n, stdout, stderr)
	}
	q, _ := b.Queue("orders")
	for _, m := range q.Messages {
		if m.Headers["x-delivery-count"] != nil {
			t.Errorf("%s was handed out and given back", m.MessageId)
		}
	}
}

// A message that another program put into the queue before its time is printed
// as it is, and said so once; what is early by a clock's difference or its lead is waited for.
func TestConsumeOfEarlyMessages(t *testing.T) {
	b := newByHand(t)
	for _, in := range []time.Duration{time.Hour, 2 * time.Hour, 19 * time.Millisecond} {
		b.fillWith(t, "orders", amqp.Publishing{MessageId: in.String(), Headers: amqp.Table{amqpx.HeaderDue: time.Now().Add(in).UnixMilli()}})
	}
	led := amqp.Table{amqpx.HeaderDue: time.Now().Add(500 * time.Millisecond).UnixMilli(), amqpx.HeaderLead: int64(1000)}
	b.fillWith(t, "orders", amqp.Publishing{MessageId: "with a lead", Headers: led})
	code, stdout, stderr := b.run(t, "consume", "--queue", "orders", "--count", "4", "--timeout", "1m", "--json")
	if n := b.ready(t, "orders"); code != 0 || n != 0 || !strings.Contains(stdout, `{"received":4,"early":2,`) {
		t.Errorf("exit %d, %d left, output %s", code, n, stdout)
	}
	var e struct{ Note string }
	if err := json.Unmarshal([]byte(stderr), &e); err != nil || !strings.HasPrefix(e.Note, "message 1h0m0s came 59m59.") {
		t.Errorf("errors %s", stderr)
	}
}

// A dead-letter queue gets no dead-letter queue, and consume declares no layout.
func TestConsumeCreatesNoMoreThanNeeded(t *testing.T) {
	b := newByHand(t)
	b.fill(t, "orders.dead", 1)
	code, _, stderr := b.run(t, "consume", "--queue", "orders.dead", "--count", "1")
	if code != 0 || stderr != "" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	code, _, stderr = b.run(t, "consume", "--queue", "mail.dead", "--count", "1", "--timeout", "10ms")
	if code != app.ExitTimeout || stderr != "created queue mail.dead\n" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	code, _, stderr = b.run(t, "consume", "--queue", "try", "--count", "1", "--timeout", "10ms", "--json")
	if code != app.ExitTimeout || stderr != `{"note":"created queue try and try.dead"}`+"\n" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	if got := b.Queues(); !slices.Equal(got, []string{"mail.dead", "orders.dead", "try", "try.dead"}) {
		t.Errorf("queues %v", got)
	}
	code, _, stderr = b.run(t, "send", "--queue", "try", "--yes", "--quiet") // it fits what send would have made
	if code != 0 || stderr != "" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	if code, stdout, stderr := b.run(t, "consume", "--queue", "try", "--count", "1", "--timeout", "10s"); code != 0 {
		t.Errorf("exit %d, output %s, errors %s", code, stdout, stderr)
	}
}

// What is in a delay queue is for somebody else, and not yet.
func TestConsumeRefusesDelayQueues(t *testing.T) {
	b := newByHand(t)
	f := file(t, "delay: {prefix: shop}\n")
	for _, c := range []struct{ queue, flags, want string }{
		{"delay.bucket.1m", "", "give the destination queue instead"},
		{"delay.ttl.15m", "", "give the destination queue instead"},
		{"delay.route.a", "", "give the destination queue instead"},
		{"delay.parked", "", "rabbitdelay requeue"},
		{"shop.parked", "-f " + f, "rabbitdelay requeue"},
	} {
		b.fill(t, c.queue, 1)
		code, stdout, stderr := b.run(t, append([]string{"consume", "--queue", c.queue, "--count", "1", "--timeout", "5s"}, strings.Fields(c.flags)...)...)
		if n := b.ready(t, c.queue); code != 1 || n != 1 || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit %d, %d left, output %s, errors %s", c.queue, code, n, stdout, stderr)
		}
	}
}

func TestConsumeGoesOnAfterALostConnection(t *testing.T) {
	b := newByHand(t)
	b.fill(t, "orders", 2)
	cut := &full{lines: -1}
	out := writerFunc(func(p []byte) (int, error) {
		if cut.Len() == 0 {
			b.CutConnections()
		}
		return cut.Write(p)
	})
	var errs strings.Builder
	code := Run(t.Context(), []string{"consume", "--queue", "orders", "--count", "2", "--timeout", "1m", "--url", b.url}, strings.NewReader(""), out, &errs)
	if n := b.ready(t, "orders"); code != 0 || n != 0 || !strings.Contains(errs.String(), "connection lost") {
		t.Errorf("exit %d, %d left, output %s, errors %s", code, n, cut.String(), errs.String())
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func file(t *testing.T, yaml string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "delays.yaml")
	if err := os.WriteFile(name, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestSendSaysWhatItDeclares(t *testing.T) {
	b := newByHand(t)
	const layout = `declaring the bucket strategy (delay.bucket), 283 queues and 289 exchanges whose names begin with "delay."` + "\n"
	code, _, stderr := b.run(t, "send", "--queue", "orders.expire")
	if want := layout + "created queue orders.expire and orders.expire.dead\n"; code != 0 || stderr != want {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	if code, _, stderr = b.run(t, "send", "--queue", "orders.expire"); code != 0 || stderr != "" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	f := file(t, "queues: [{name: orders.expire}]\ndestinations: [{queue: orders.expire}]\n")
	if code, _, stderr = b.run(t, "send", "--queue", "orders.expier", "-f", f); code != 0 || stderr != "created queue orders.expier and orders.expier.dead; did you mean orders.expire?\n" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	if code, _, stderr = b.run(t, "send", "--queue", "other", "--quiet"); code != 0 || stderr != "" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
}

// With another system's layout the queue is its programs'.
func TestSendByAnothersLayout(t *testing.T) {
	b := newByHand(t)
	f := file(t, "delay: {bucket: {layout: celery}}\n")
	if code, _, stderr := b.run(t, "send", "--queue", "celery", "--delay", "1s", "-f", f); code != 1 || !strings.Contains(stderr, "declaring the delays of celery as it does itself, 29 queues and 30 exchanges\n") || !strings.Contains(stderr, "its own programs declare the queue") {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	if _, err := b.channel(t).QueueDeclare("celery", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := b.run(t, "send", "--queue", "celery", "--delay", "1s", "-f", f); code != 0 || stderr != "" {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
}

// Who forgets -f gets no second layout beside the one in use.
func TestSendKeepsToTheLayoutThatIsThere(t *testing.T) {
	for _, c := range []struct{ yaml, name string }{
		{"delay: {bucket: {layout: hex}}\n", "the layout delay.bucket.hex"},
		{"delay: {queue_type: classic}\n", "the layout delay.bucket.classic"},
		{"delay: {bucket: {radices: [10, 10]}}\n", "another layout"},
		{"delay: {strategy: ttl, ttl: {delays: [1m]}}\n", "another layout"},
	} {
		b := newByHand(t)
		if code, _, stderr := b.run(t, "send", "--queue", "q", "-f", file(t, c.yaml)); code != 0 || strings.Contains(stderr, "beside") {
			t.Fatalf("%s: exit %d, errors %s", c.yaml, code, stderr)
		}
		before := b.Queues()
		code, _, stderr := b.run(t, "send", "--queue", "q2")
		if want := "rabbitdelay: the broker has " + c.name + "; the defaults need the bucket strategy (delay.bucket), "; code != 1 || !strings.HasPrefix(stderr, want) || !strings.Contains(stderr, "-f") {
			t.Errorf("%s: exit %d, errors %s", c.yaml, code, stderr)
		}
		if after := b.Queues(); !slices.Equal(before, after) {
			t.Errorf("%s: %d queues were made", c.yaml, len(after)-len(before))
		}
		if code, _, stderr := b.run(t, "send", "--queue", "q2", "--yes"); code != 0 || !strings.Contains(stderr, "beside "+c.name) {
			t.Errorf("%s: exit %d, errors %s", c.yaml, code, stderr)
		}
	}
}

func TestListedDestinationsOnly(t *testing.T) {
	b := newByHand(t)
	f := file(t, "broker: {declare: listed}\ndestinations: [{queue: orders.expire}]\n")
	code, _, stderr := b.run(t, "send", "--queue", "orders.expier", "-f", f)
	if code != 1 || !strings.Contains(stderr, `destination queue "orders.expier" is not a destination of the configuration, and only those may be used (declare: listed): orders.expire`) {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	if _, ok := b.Queue("orders.expier"); ok {
		t.Error("the queue of a typing error was made")
	}
	if code, _, stderr := b.run(t, "send", "--queue", "orders.expire", "-f", f); code != 0 {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	if code, _, stderr := b.run(t, "consume", "--queue", "orders.expier", "-f", f); code != 1 || !strings.Contains(stderr, "does not allow creating it") {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
}

func TestEmptyFlagsAreErrors(t *testing.T) {
	for _, args := range [][]string{
		{"send", "--queue", "q", "--url", ""}, {"plan", "-f", ""}, {"send", "--queue", ""}, {"migrate", "--db", ""}, {"tasks", "list", "--db", ""},
		{"consume", "--queue="}, {"send", "--queue", "q", "--header", ""}, {"send", "--queue", "q", "--id", ""}, {"plan", "--strategy", ""}, {"serve", "--db", ""},
		{"send", "--queue", " "}, {"consume", "--queue", " \t"}, {"send", "--exchange", " "}, {"plan", "--url", " "}, {"destroy", "--layout", " "},
	} {
		code, stdout, stderr := run(t, "", args...)
		if code != 1 || stdout != "" || !strings.HasSuffix(stderr, " is empty, perhaps from an unset variable; give a value, or leave the flag out\n") {
			t.Errorf("%q: exit %d, output %s, errors %s", args, code, stdout, stderr)
		}
	}
	if code, _, stderr := run(t, "", "doctor", "--url", ""); code != 1 || !strings.Contains(stderr, "--url is empty") {
		t.Errorf("exit %d, errors %s", code, stderr)
	}
	t.Setenv("AMQP_URL", "")
	if _, _, stderr := run(t, "", "plan", "--strategy", "fast"); !strings.HasPrefix(stderr, "note: AMQP_URL is set and empty, which counts as not set\n") {
		t.Errorf("errors %s", stderr)
	}
}

// A file has no password, and its parameters stay away all the same.
func TestMigrateNamesTheFile(t *testing.T) {
	db := "sqlite:" + filepath.Join(t.TempDir(), "t.db")
	for _, c := range []struct{ url, want string }{{db, " has its tables now: idempotency, "}, {db + "?_pragma=user_version(1)", " is up to date: idempotency, "}} {
		code, stdout, stderr := run(t, "", "migrate", "--db", c.url)
		if want := db + c.want; code != 0 || !strings.HasPrefix(stdout, want) {
			t.Errorf("exit %d, output %s, want %s, errors %s", code, stdout, want, stderr)
		}
	}
	t.Chdir(t.TempDir())
	if code, stdout, stderr := run(t, "", "migrate", "--db", "sqlite:t.db"); code != 0 || !strings.HasPrefix(stdout, "sqlite:t.db has its tables now: ") {
		t.Errorf("exit %d, output %s, errors %s", code, stdout, stderr)
	}
}

func TestDidYouMean(t *testing.T) {
	for args, want := range map[string]string{
		"sned":                                  `unknown command "sned"; see rabbitdelay --help; did you mean send?`,
		"tasks lits":                            `unknown command "lits"; see rabbitdelay tasks --help; did you mean list?`,
		"send --qeue x":                         "unknown flag: --qeue; see rabbitdelay send --help; did you mean --queue?",
		"plan --stategy ttl":                    "unknown flag: --stategy; see rabbitdelay plan --help; did you mean --strategy?",
		"send amqp://user:hunter2@127.0.0.1:1/": `unexpected argument "(a URL)"; see rabbitdelay send --help`,
		"send --queue q --delay amqp://user:hunter2@127.0.0.1:1/": `invalid argument "amqp://user:xxxxx@127.0.0.1:1/" for "--delay" flag: expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got "(a URL)"; see rabbitdelay send --help`,
	} {
		if _, _, stderr := run(t, "", strings.Fields(args)...); stderr != "rabbitdelay: "+want+"\n" {
			t.Errorf("%s: got %s, want %s", args, stderr, want)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	_, want, _ := run(t, "", "version")
	if code, got, _ := run(t, "", "--version"); code != 0 || got != want {
		t.Errorf("exit %d, output %s", code, got)
	}
}

func TestSettingsCommand(t *testing.T) {
	code, stdout, _ := run(t, "", "settings")
	if code != 0 || !strings.Contains(stdout, "RABBITDELAY_DELAY_BUCKET_RESOLUTION") {
		t.Errorf("exit %d, output %s", code, stdout)
	}
	code, stdout, _ = run(t, "", "settings", "--json")
	for line := range strings.Lines(stdout) {
		var s map[string]string
		if err := json.Unmarshal([]byte(line), &s); err != nil || len(s) != 5 || code != 0 {
			t.Errorf("exit %d, line %s: %v", code, line, err)
		}
	}
}

func TestBoundsReadAsPeopleWriteThem(t *testing.T) {
	b := newByHand(t)
	_, _, stderr := b.run(t, "send", "--queue", "q", "--delay", "385d")
	if !strings.Contains(stderr, "delay 385d is longer than the layout clock reaches; it accepts 0s to 383d23h59m59.99s") {
		t.Errorf("got %s", stderr)
	}
}

// Each command says how it is used, without losing anything, and how it exits.
func TestEveryCommandHasAnExample(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Example == "" && c.Name() != "help" && c.Name() != "completion" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, word := range []string{"--force", "consume --queue orders"} {
			if strings.Contains(c.Example, word) {
				t.Errorf("the example of %s loses messages: %s", c.CommandPath(), c.Example)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(command(program.New(&term.Terminal{})))
}

// Ctrl-C ends a command that waits for a handshake.
func TestInterruptedHandshake(t *testing.T) {
	for _, command := range []string{"plan", "send --queue q", "consume --queue q"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			_, _ = conn.Read(make([]byte, 8)) // the client waits for an answer
		}()
		t.Setenv("RABBITDELAY_BROKER_DIAL_TIMEOUT", "1h")
		var out, errs strings.Builder
		code := Run(ctx, append(strings.Fields(command), "--url", "amqp://"+l.Addr().String()+"/"), strings.NewReader(""), &out, &errs)
		if code != program.ExitInterrupt || errs.String() != "rabbitdelay: interrupted\n" {
			t.Errorf("%s: exit %d, errors %s", command, code, errs.String())
		}
		_ = l.Close()
	}
}
