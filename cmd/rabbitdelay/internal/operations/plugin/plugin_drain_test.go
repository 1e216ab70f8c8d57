package plugin_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

// ctlOf returns a shell command that runs rabbitmqctl in the broker's container, or skips the test.
func ctlOf(t *testing.T, v *suite.Vhost) string {
	t.Helper()
	command, err := v.Broker.CtlCommand()
	if err != nil {
		t.Skipf("skipped: rabbitmqctl cannot be reached with standard input: %v", err)
	}
	return command
}

// fewQueues is the settings for a small layout.
const fewQueues = "delay: {strategy: bucket, bucket: {radices: [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2], resolution: 100ms}}\n"

// takesAll receives n messages from a queue, and any that arrive within a second after them.
func takesAll(t *testing.T, v *suite.Vhost, queue string, n int, within time.Duration) []amqp.Delivery {
	t.Helper()
	in, err := v.Channel(t).Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []amqp.Delivery
	deadline := time.After(within)
	for {
		var more <-chan time.Time
		if len(list) >= n {
			more = time.After(3 * time.Second)
		}
		select {
		case d := <-in:
			list = append(list, d)
		case <-more:
			return list
		case <-deadline:
			return list
		}
	}
}

type drainReport struct {
	Found, Sent, Deleted, Resumed, Twice int
	Soon                                 int `json:"already_due"`
	Refused                              []struct {
		Exchange, Why string
		Count         int
	}
}

func reportOf(t *testing.T, r suite.Ran) (rep drainReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.Stdout), &rep); err != nil {
		t.Fatalf("the report is not JSON: %v: %s", err, r)
	}
	return rep
}

// After a drain, waiting messages arrive unchanged through the delay queues when they are due. Messages that cannot be
// moved unchanged, or that are due soon, still arrive through the plugin.
func TestPluginDrain(t *testing.T) {
	t.Parallel()
	onPlugins(t, func(t *testing.T, v *suite.Vhost) {
		ctl := ctlOf(t, v)
		delays(t, v, "orders \xe2\x82\xac", "topic", "order.#")
		const exchange = "orders \xe2\x82\xac"
		ch := v.Channel(t)
		user := v.Conn.Config.SASL[0].(*amqp.PlainAuth).Username
		hostile := make([]byte, 256)
		for i := range hostile {
			hostile[i] = byte(i)
		}
		full := amqp.Publishing{
			MessageId: "full\x00;\"", ContentType: "a/b", ContentEncoding: "gzip", Type: "t", CorrelationId: "c", ReplyTo: "r", AppId: "app", UserId: user,
			Priority: 4, DeliveryMode: amqp.Persistent, Timestamp: time.Unix(1_700_000_000, 0), Body: hostile,
			Headers: amqp.Table{
				"bool": true, "i8": int8(-1), "u8": uint8(255), "i16": int16(-2), "i32": int32(-3), "i64": int64(-4), "f32": float32(1.5), "f64": 2.5,
				"decimal": amqp.Decimal{Scale: 2, Value: 5}, "text": "line\nbreak", "bytes": []byte{0xff, 0}, "time": time.Unix(9, 0), "void": nil,
				"table": amqp.Table{"n": int32(1)}, "list": []any{"a", int64(2)},
			},
		}
		due := time.Now().Add(90 * time.Second)
		delayed(t, ch, exchange, "order.a", 90*time.Second, full, amqp.Publishing{Body: []byte("no id")}, amqp.Publishing{MessageId: "empty"})
		delayed(t, ch, exchange, "order.a", 90*time.Second, amqp.Publishing{MessageId: "urgent", Priority: 9})
		sent, stay := 4, 3
		if plan.ParseVersion(v.Broker.Version()).AtLeast(4, 0, 0) {
			sent, stay = 3, 4 // a message with a high priority stays, because it would block others
		}
		delayed(t, ch, exchange, "order.a", 90*time.Second, amqp.Publishing{MessageId: "cc", Headers: amqp.Table{"CC": []any{"order.b"}}},
			amqp.Publishing{MessageId: "expires", Expiration: "60000"},
			amqp.Publishing{MessageId: "died", Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": "q", "reason": "rejected", "count": int64(3)}}}})
		delayed(t, ch, exchange, "order.a", 25*time.Second, amqp.Publishing{MessageId: "soon"})

		command := suite.CommandOn(t, v, fewQueues)
		state := filepath.Join(t.TempDir(), "state")
		args := []string{"plugin", "drain", "--rabbitmqctl", ctl, "--state", state, "--margin", "30s", "--json"}
		dry := command(append(args, "--dry-run")...)
		if rep := reportOf(t, dry); dry.Code != 2 || rep.Found != 8 || rep.Sent != sent || rep.Soon != 1 || len(rep.Refused) != stay {
			t.Errorf("dry run: got %s, want exit code 2, Found = 8, Sent = %v, Soon = 1 and %v refused", dry, sent, stay)
		}
		if refused := command(args...); refused.Code != 1 || !strings.Contains(refused.Stderr, "give --yes") {
			t.Errorf("without a terminal: got %s, want exit code 1 and Stderr containing \"give --yes\"", refused)
		}
		r := command(append(args, "--yes")...)
		if rep := reportOf(t, r); r.Code != 2 || rep.Sent != sent || rep.Deleted != sent || rep.Twice != 0 || len(rep.Refused) != stay {
			t.Fatalf("drain: got %v, want exit code 2, %d messages sent and deleted, none sent twice and %d refused", r, sent, stay)
		}
		if again := reportOf(t, command(append(args, "--yes")...)); again.Sent != 0 || again.Resumed != 0 {
			t.Errorf("a second drain: got %+v, want Sent = 0 and Resumed = 0", again)
		}
		got := map[string]amqp.Delivery{}
		list := takesAll(t, v, exchange, 8, 3*time.Minute)
		for _, d := range list {
			got[d.MessageId] = d
			if at := time.Now(); d.MessageId != "soon" && at.Before(due.Add(-time.Second)) {
				t.Errorf("message %s arrived %v before it was due, want at most 1s", d.MessageId, due.Sub(at))
			}
		}
		if len(list) != 8 || len(got) != 8 || got["urgent"].Priority != 9 {
			t.Fatalf("got %d messages with %d ids, want 8 of each, and the message urgent with priority 9", len(list), len(got))
		}
		d := got[full.MessageId]
		for k, want := range full.Headers {
			if !reflect.DeepEqual(d.Headers[k], want) {
				t.Errorf("header %s: got %#v, want %#v", k, d.Headers[k], want)
			}
		}
		p := amqp.Publishing{
			MessageId: d.MessageId, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Type: d.Type, CorrelationId: d.CorrelationId,
			ReplyTo: d.ReplyTo, AppId: d.AppId, UserId: d.UserId, Priority: d.Priority, DeliveryMode: d.DeliveryMode,
			Timestamp: d.Timestamp, Body: d.Body, Headers: full.Headers,
		}
		if !reflect.DeepEqual(p, full) || d.Exchange != exchange || d.RoutingKey != "order.a" {
			t.Errorf(`got exchange %s, routing key %s and %+v, want %[5]s, "order.a" and %+[4]v`, d.Exchange, d.RoutingKey, p, full, exchange)
		}
	})
}

// envDrained is the environment variable with the number of messages for TestPluginDrainKilled.
const envDrained = "RABBITDELAY_TEST_DRAINED"

func messagesToDrain(t *testing.T) int {
	t.Helper()
	text := os.Getenv(envDrained)
	if text == "" {
		return 6000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 6000 || n > 200_000 { // with more messages, some delays would be too long for the small layout
		t.Fatalf("%s is %q, want a number of 6000 to 200000", envDrained, text)
	}
	return n
}

// If the drain is killed at any time, no message is lost, and no message arrives with two ids.
func TestPluginDrainKilled(t *testing.T) {
	t.Parallel()
	n := messagesToDrain(t)
	onPlugins(t, func(t *testing.T, v *suite.Vhost) {
		ctl := ctlOf(t, v)
		delays(t, v, "orders", "topic", "order.#")
		ch := v.Channel(t)
		list := make([]amqp.Publishing, n)
		for i := range list {
			list[i] = amqp.Publishing{Body: fmt.Append(nil, i)}
			if i%2 == 0 {
				list[i].MessageId = fmt.Sprint("m", i)
			}
		}
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		ahead := 110*time.Second + time.Duration(n)*7*time.Millisecond
		due := time.Now().Add(ahead) // the earliest possible due time of the first message
		var last *amqp.DeferredConfirmation
		for i, p := range list {
			p.Headers = amqp.Table{"x-delay": ahead.Milliseconds() + int64(i%5000)}
			var err error
			if last, err = ch.PublishWithDeferredConfirm("orders", "order.a", false, false, p); err != nil {
				t.Fatal(err)
			}
		}
		if !last.Wait() {
			t.Fatal("got no confirm of the last message, want one")
		}
		file := filepath.Join(t.TempDir(), "delays.yaml")
		if err := os.WriteFile(file, []byte(fewQueues), 0o600); err != nil {
			t.Fatal(err)
		}
		state := filepath.Join(t.TempDir(), "state")
		args := []string{"plugin", "drain", "--rabbitmqctl", ctl, "--state", state, "--margin", "20s", "--yes", "--json", "-f", file, "--url", v.URL}
		began, killed := time.Now(), 0
		for {
			child := suite.Command(t, args...)
			var out, errs strings.Builder
			child.Stdout, child.Stderr = &out, &errs
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- child.Wait() }()
			if killed < 5 {
				killsAt(child.Process, ended, state, sizeOf(state)+rand.Int64N(int64(16*n)))
			}
			err := <-ended
			if err == nil {
				t.Logf("the drain was killed %d times, and finished after %v: %s", killed, time.Since(began).Round(time.Second), out.String())
				break
			}
			if child.ProcessState.Exited() {
				t.Fatalf("the child exited before it was killed: %v: %s%s", err, out.String(), errs.String())
			}
			killed++
		}
		if killed < 3 {
			t.Errorf("the drain was killed %d times, want at least 3", killed)
		}
		var waiting struct {
			Delayed int64 `json:"messages_delayed"`
		}
		if _, err := v.Mgmt.Call(t.Context(), http.MethodGet, v.Mgmt.InVhost("exchanges", "orders"), nil, &waiting); err != nil || waiting.Delayed != 0 {
			t.Errorf("the plugin's waiting messages: got error %v and %d messages, want no error and 0", err, waiting.Delayed)
		}
		ids, copies := map[string]string{}, 0
		if time.Now().After(due) {
			t.Fatal("the messages were due before the drain had finished, want it to finish earlier for a meaningful test")
		}
		for _, d := range takesAll(t, v, "orders", n, time.Until(due)+4*time.Minute) {
			body := string(d.Body)
			if before, ok := ids[body]; ok {
				copies++
				if before != d.MessageId {
					t.Errorf("message %s arrived with the ids %q and %q, want one id", body, before, d.MessageId)
				}
			}
			ids[body] = d.MessageId
		}
		if len(ids) != n {
			t.Errorf("%d messages arrived, want %d", len(ids), n)
		}
		if copies > killed*200 {
			t.Errorf("%d messages arrived twice after %d kills, want at most 200 for each kill", copies, killed)
		}
		t.Logf("%d kills, %d messages arrived twice under the same id", killed, copies)
	})
}

// killsAt kills a process when a file has reached the given size, unless the process exits before.
func killsAt(p *os.Process, ended chan error, file string, size int64) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		select {
		case err := <-ended:
			ended <- err
			return
		default:
		}
		if sizeOf(file) > size {
			_ = p.Kill() // the process may have exited
			return
		}
	}
}

// sizeOf returns the size of a file, or 0 if it does not exist yet.
func sizeOf(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// If rabbitmqctl reaches a node without the plugin's table, or a node of another broker than expected, drain reports it
// before it reads any messages.
func TestPluginDrainFromTheWrongNode(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		ctl := ctlOf(t, v)
		command := suite.CommandOn(t, v, fewQueues)
		r := command("plugin", "drain", "--rabbitmqctl", ctl, "--yes")
		if r.Code != 1 {
			t.Errorf("without the plugin: exit code %d, want 1: %s", r.Code, r)
		}
		if want := "the plugin is not enabled on this node"; !strings.Contains(r.Stderr, want) {
			t.Errorf("without the plugin: got %s, want Stderr containing %q", r, want)
		}
		if r.Stdout != "" {
			t.Errorf("without the plugin: got the output %q, want none", r.Stdout)
		}
		if r := command("plugin", "drain", "--rabbitmqctl", ctl, "--other-broker", "--yes"); r.Code != 1 || !strings.Contains(r.Stderr, "omit --other-broker") {
			t.Errorf(`--other-broker with the same broker: got %s, want exit code 1 and Stderr containing "omit --other-broker"`, r)
		}
	})
}
