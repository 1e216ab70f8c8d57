package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// language has a producer and a consumer in integration/wire that follow docs/wire.md.
type language struct {
	name  string
	hours int      // the highest digit of the hours for which its consumer must send messages back
	needs []string // files that Debian's packages install
	// setup compiles the programs into a directory; nil if there is nothing to do.
	setup              func(t *testing.T, dir string)
	producer, consumer func(dir string) []string
}

const (
	javaClient = "/usr/share/java/amqp-client.jar"
	javaLog    = "/usr/share/java/slf4j-api.jar"
)

func java(class string) func(dir string) []string {
	return func(dir string) []string {
		return []string{"java", "-cp", strings.Join([]string{dir, javaClient, javaLog}, ":"), class}
	}
}

func compileJava(t *testing.T, dir string) {
	t.Helper()
	sources, err := filepath.Glob("../wire/java/*.java")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-Xlint:all,-processing", "-Werror", "-encoding", "UTF-8", "-cp", javaClient, "-d", dir}, sources...)
	if out, err := exec.CommandContext(t.Context(), "javac", args...).CombinedOutput(); err != nil {
		t.Fatalf("javac: %v\n%s", err, out)
	}
}

var languages = []language{
	{
		name: "python", hours: 2, needs: []string{"/usr/bin/python3", "/usr/lib/python3/dist-packages/pika"},
		producer: func(string) []string { return []string{"/usr/bin/python3", "-B", "../wire/python/producer.py"} },
		consumer: func(string) []string { return []string{"/usr/bin/python3", "-B", "../wire/python/consumer.py"} },
	},
	{
		name: "php", hours: 3, needs: []string{"/usr/bin/php", "/usr/share/php/PhpAmqpLib/autoload.php"},
		producer: func(string) []string { return []string{"/usr/bin/php", "../wire/php/producer.php"} },
		consumer: func(string) []string { return []string{"/usr/bin/php", "../wire/php/consumer.php"} },
	},
	{
		name: "java", hours: 4, needs: []string{"/usr/bin/javac", javaClient, javaLog},
		setup: compileJava, producer: java("Producer"), consumer: java("Consumer"),
	},
}

// installed skips the test if the language is not installed. `make setup` installs all languages.
func (l language) installed(t *testing.T) {
	t.Helper()
	for _, path := range l.needs {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("skipped: the AMQP client for %s is not installed: %v; `make setup` installs it", l.name, err)
		}
	}
}

// run runs a program with the given lines on its standard input, and returns the lines that it prints, split at tabs.
func (l language) run(t *testing.T, input []string, command ...string) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Join(input, "\n")+"\n"), &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("running %v: %v\n%s\n%s", command[:2], err, out.String(), problems.String())
	}
	var lines [][]string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Split(strings.TrimRight(line, "\r\n"), "\t"))
	}
	return lines
}

// wireVector is a test vector of the default layout, which is the first layout in docs/wire.json.
type wireVector struct {
	queue, want string
	delay, lead int64 // in ms
}

func wireVectors(t *testing.T) (list []wireVector) {
	t.Helper()
	data, err := os.ReadFile("../../docs/wire.json")
	if err != nil {
		t.Fatal(err)
	}
	type target struct {
		Queue, Exchange string
		RoutingKey      string `json:"routing_key"`
	}
	var file struct {
		Layouts []struct {
			Destinations []struct {
				Destination target
				Bindings    []struct{ Queue string }
			}
			Routes []struct {
				Destination target
				DelayMS     int64 `json:"delay_ms"`
				Exchange    string
				RoutingKey  string `json:"routing_key"`
				Refused     bool
			}
		}
		Messages []struct {
			Queue      string
			Now        int64 `json:"now_ms"`
			Due        int64 `json:"due_ms"`
			Lead       int64 `json:"lead_ms"`
			Offset     int64 `json:"clock_offset_ms"`
			Exchange   string
			RoutingKey string `json:"routing_key"`
			Headers    struct {
				Lead int64 `json:"rabbitdelay-lead"`
			}
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	targets := map[target]string{}
	for _, d := range file.Layouts[0].Destinations {
		targets[d.Destination] = d.Destination.Queue // the target if the destination is invalid and therefore has no bindings
		for _, b := range d.Bindings {
			targets[d.Destination] = b.Queue
		}
	}
	for _, r := range file.Layouts[0].Routes {
		v := wireVector{queue: targets[r.Destination], delay: r.DelayMS, want: r.Exchange + "\t" + r.RoutingKey}
		if r.Refused {
			v.want = "refused"
		}
		list = append(list, v)
	}
	for _, m := range file.Messages {
		v := wireVector{queue: m.Queue, delay: m.Due - m.Offset - m.Now, lead: m.Lead, want: m.Exchange + "\t" + m.RoutingKey}
		if m.Lead > 0 {
			v.want += "\t" + strconv.FormatInt(m.Headers.Lead, 10)
		}
		list = append(list, v)
	}
	return list
}

// Programs in other languages compute the same vectors, exchange messages with each other and with Go, and consume with
// retries and dead letters that Go can read.
func TestLanguages(t *testing.T) {
	t.Parallel()
	vectors := wireVectors(t)
	// All languages share one virtual host for each version, because declaring the layout takes longer than their tests.
	vhosts := map[string]func() *suite.Vhost{}
	for _, line := range suite.ConformanceLines {
		vhosts[line] = sync.OnceValue(func() *suite.Vhost {
			return suite.NewVhost(t, broker.Shared(t, broker.Options{Version: line}))
		})
	}
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.installed(t)
			dir := t.TempDir()
			if l.setup != nil {
				l.setup(t, dir)
			}
			t.Run("vectors", func(t *testing.T) { l.meets(t, dir, vectors) })
			t.Run(suite.Memory, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{})
				t.Cleanup(srv.Close)
				url, err := srv.Listen()
				if err != nil {
					t.Fatal(err)
				}
				url, _, _ = strings.Cut(url, "/?") // Java interprets the path / as a virtual host without a name
				v := &suite.Vhost{URL: url}
				v.Conn = v.Dial(t)
				l.talks(t, dir, v)
			})
			for _, line := range suite.ConformanceLines {
				t.Run(line, func(t *testing.T) {
					t.Parallel()
					versions, err := broker.Versions(t.Context())
					if err != nil || !slices.Contains(versions, line) {
						t.Skipf("skipped: RabbitMQ %s is not available (%v)", line, err)
					}
					broker.Shared(t, broker.Options{Version: line}) // called here so that it skips or fails this subtest
					l.talks(t, dir, vhosts[line]())
				})
			}
		})
	}
}

func (l language) meets(t *testing.T, dir string, vectors []wireVector) {
	var input []string
	for _, v := range vectors {
		line := v.queue + "\t" + strconv.FormatInt(v.delay, 10)
		if v.lead > 0 {
			line += "\t" + strconv.FormatInt(v.lead, 10)
		}
		input = append(input, line)
	}
	got := l.run(t, input, append(l.producer(dir), "route")...)
	if len(got) != len(vectors) {
		t.Fatalf("got %d routes, want %d: %q", len(got), len(vectors), got)
	}
	for i, v := range vectors {
		if line := strings.Join(got[i], "\t"); line != v.want {
			t.Errorf("route to %q with a delay of %d ms and a lead of %d ms: got %q, want %q", v.queue, v.delay, v.lead, line, v.want)
		}
	}
}

// talks checks that the language's consumer receives messages from Go and from the language's own producer, and that Go
// can read its retries and dead letters.
func (l language) talks(t *testing.T, dir string, v *suite.Vhost) {
	client := suite.OpenClient(t, amqpx.Config{URL: v.URL, Lead: 4 * time.Second})
	queue := "wire.%." + l.name
	sent := time.Now()
	own := []string{"own-ok\t1500\tfine", "own-now\t0\tfine", "own-fail\t20\tfail", "own-lead\t5000\tfine\t4000", "own-short\t3000\tfine\t4000"}
	confirmed := l.run(t, own, append(l.producer(dir), v.URL, queue)...)
	if len(confirmed) != len(own) || confirmed[0][0] != "confirmed" {
		t.Fatalf(`got %q, want %v lines, the first of them "confirmed"`, confirmed, len(own))
	}
	for id, body := range map[string]string{"go-ok": "fine", "go-reject": "reject", "go-fail": "fail"} {
		suite.Send(t, client, amqpx.Message{ID: id, Queue: queue, Delay: 5 * time.Second, Body: []byte(body), Headers: map[string]any{"mine": "kept"}})
	}
	due := l.tooEarly(t, v, queue)
	attempts := map[string]int{}
	for _, d := range l.run(t, nil, append(l.consumer(dir), v.URL, queue, "10")...) {
		attempts[d[0]]++
		due, _ := strconv.ParseInt(d[2], 10, 64)
		now, _ := strconv.ParseInt(d[3], 10, 64)
		if d[1] != strconv.Itoa(attempts[d[0]]) || now < due || due < sent.UnixMilli() {
			t.Errorf("got delivery %q, want attempt %d, due after it was sent and handled when due", d, attempts[d[0]])
		}
	}
	want := map[string]int{
		"own-ok":    1,
		"own-now":   1,
		"own-fail":  2,
		"own-lead":  1,
		"own-short": 1,
		"go-ok":     1,
		"go-reject": 1,
		"go-fail":   2,
	}
	if fmt.Sprint(attempts) != fmt.Sprint(want) {
		t.Errorf("attempts by message: got %v, want %v", attempts, want)
	}
	l.buried(t, v, queue)
	l.sentBack(t, v, due)
}

// clockOffsets has the ids of the messages that arrive too early, and the clock offset in milliseconds in their
// headers. rabbitdelay does not write negative offsets, but they are tested because some AMQP clients misread them.
var clockOffsets = map[string]int64{"early": 250, "early-behind": -250}

// tooEarly publishes messages to a queue hours before they are due, as a policy could cause, and returns the due time.
func (l language) tooEarly(t *testing.T, v *suite.Vhost, queue string) (due int64) {
	ch, err := v.Conn.Channel()
	suite.MustSucceed(t, err)
	due = time.Now().Add(time.Duration(l.hours)*time.Hour + 30*time.Minute).UnixMilli()
	for id, offset := range clockOffsets {
		headers := amqp.Table{
			amqpx.HeaderDue: due + offset, "rabbitdelay-clock-offset": offset,
			"rabbitdelay-lead": int64(400), amqpx.HeaderAttempt: int64(3), "mine": "kept",
		}
		suite.MustSucceed(t, ch.PublishWithContext(t.Context(), "", queue, true, false, amqp.Publishing{
			MessageId: id, Timestamp: time.Now(), DeliveryMode: amqp.Persistent, Body: []byte("fine"), Headers: headers,
		}))
	}
	return due
}

// sentBack checks that the messages of tooEarly are in the delay queues, with their due times. A negative offset is not
// passed on.
func (l language) sentBack(t *testing.T, v *suite.Vhost, due int64) {
	ch, err := v.Conn.Channel()
	suite.MustSucceed(t, err)
	seen := map[string]bool{}
	for range clockOffsets {
		raw, ok, err := ch.Get(fmt.Sprintf("delay.bucket.%dh", l.hours), true)
		suite.MustSucceed(t, err)
		if !ok {
			t.Fatalf("of the messages that arrived hours too early, the consumer sent back %v, want all of %v", seen, clockOffsets)
		}
		seen[raw.MessageId] = true
		delete(raw.Headers, "x-delivery-count") // added by this read, before 4.0
		offset := clockOffsets[raw.MessageId]
		want := amqp.Table{
			amqpx.HeaderDue: due + offset, amqpx.HeaderAttempt: int64(3), "mine": "kept",
			"rabbitdelay-absolute": true, "rabbitdelay-returned": int64(1),
		}
		if offset > 0 {
			want["rabbitdelay-clock-offset"] = offset
		}
		if string(raw.Body) != "fine" {
			t.Errorf("message %s was sent back with the body %q, want \"fine\"", raw.MessageId, raw.Body)
		}
		if fmt.Sprint(raw.Headers) != fmt.Sprint(want) {
			t.Errorf("message %s was sent back with the headers %v, want %v", raw.MessageId, raw.Headers, want)
		}
	}
	for id := range clockOffsets {
		if !seen[id] {
			t.Errorf("message %s was not sent back, want it in a delay queue", id)
		}
	}
}

// buried checks that Go can read the dead letters.
func (l language) buried(t *testing.T, v *suite.Vhost, queue string) {
	reasons := map[string]string{"own-fail": inspect.ReasonAttempts, "go-fail": inspect.ReasonAttempts, "go-reject": inspect.ReasonRejected}
	suite.Gathers(t, v, queue+".dead", len(reasons))
	ch, err := v.Conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for range reasons {
		raw, ok, err := ch.Get(queue+".dead", true)
		if err != nil || !ok {
			t.Fatalf("basic.get from %s.dead: got ok = %t, error %v, want a message", queue, ok, err)
		}
		d := inspect.ReadDeadLetter(raw, queue+".dead", "delay")
		failed := map[string]int{inspect.ReasonAttempts: 2, inspect.ReasonRejected: 1}[d.Reason]
		if d.Reason != reasons[d.ID] || d.Destination.Queue != queue || len(d.Attempts) != failed || d.Attempt != failed || d.Error == "" || d.DueAt.IsZero() {
			t.Errorf("dead letter %s: got reason %s, destination %+v, attempt %d, attempts %q, error %q and due time %v, want reason %s, queue %s, %d attempts, an error and a due time",
				d.ID, d.Reason, d.Destination, d.Attempt, d.Attempts, d.Error, d.DueAt, reasons[d.ID], queue, failed)
		}
		if _, ok := d.Headers["x-death"]; ok || strings.HasPrefix(d.ID, "go-") && d.Headers["mine"] != "kept" {
			t.Errorf("headers of dead letter %s: got %v, want the publisher's header and no x-death", d.ID, d.Headers)
		}
	}
	if n := suite.MessagesIn(t, v, "delay.parked"); n > 0 {
		t.Errorf("%d messages are parked, want 0", n)
	}
}

// A held message that is redelivered to a new Python consumer is handled when it is due, and not a whole lead later.
// The consumer replaces it with a copy before the queue's delivery limit would drop it.
func TestPythonAcceptsReturnedMessages(t *testing.T) {
	l := languages[slices.IndexFunc(languages, func(l language) bool { return l.name == "python" })]
	l.installed(t)
	srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5"})
	t.Cleanup(srv.Close)
	url, err := srv.Listen()
	suite.MustSucceed(t, err)
	ch, err := (&suite.Vhost{URL: url}).Dial(t).Channel()
	suite.MustSucceed(t, err)
	client := suite.OpenClient(t, amqpx.Config{URL: url}) // declares the layout
	suite.MustSucceed(t, client.Check(amqpx.Message{Queue: "own"}))
	_, err = ch.QueueDeclare("own", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1)})
	suite.MustSucceed(t, err)
	const lead, passed = time.Minute, 50 * time.Second
	now := time.Now()
	due := now.Add(lead - passed).Truncate(time.Millisecond) // as in its header
	suite.MustSucceed(t, ch.PublishWithContext(t.Context(), "", "own", true, false, amqp.Publishing{
		MessageId: "held", Timestamp: now.Add(-time.Hour), DeliveryMode: amqp.Persistent, Body: []byte("fine"),
		Headers: amqp.Table{
			amqpx.HeaderDue: due.UnixMilli(), "rabbitdelay-lead": lead.Milliseconds(),
			"x-death": []any{amqp.Table{"queue": "delay.bucket.1h", "reason": "expired", "time": now.Add(-passed), "count": int64(1)}},
		},
	}))
	raw, ok, err := ch.Get("own", false)
	if err != nil || !ok {
		t.Fatalf("basic.get: got ok = %t, error %v, want a message", ok, err)
	}
	suite.MustSucceed(t, raw.Nack(false, true))
	got := l.run(t, nil, append(l.consumer(t.TempDir()), url, "own", "1")...)
	at, _ := strconv.ParseInt(got[0][3], 10, 64)
	if late := time.UnixMilli(at).Sub(due); got[0][0] != "held" || got[0][2] != strconv.FormatInt(due.UnixMilli(), 10) || late < 0 || late > passed/2 {
		t.Errorf("handled %q, %v after it was due, want the message held, with its due time, at most %v late", got, late, passed/2)
	}
	if n := srv.Publishes(""); n != 3 { // this message, the request for the time, and the copy
		t.Errorf("%d messages were published to queues, want 3", n)
	}
}
