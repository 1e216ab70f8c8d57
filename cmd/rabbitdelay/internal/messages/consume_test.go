package messages_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// fullDisk is an output that accepts a limited number of lines.
type fullDisk struct {
	lines int
	strings.Builder
}

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.lines == 0 {
		return 0, errors.New("no space left on device")
	}
	f.lines--
	return f.Builder.Write(p)
}

// If the queue does not answer, consume does not report that it is empty.
func TestConsumeOfAQueueThatDoesNotAnswer(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	b.Fill(t, "orders", 0)
	defer b.RefuseMethod("basic.get", "orders", 541, "nodedown")()
	r := clitest.Expect(t, 1, "consume", "--queue", "orders", "--timeout", "100ms", "--url", b.URL)
	if want := "the queue orders does not answer (nodedown), so the number of its messages is unknown"; !strings.Contains(r.Stderr, want) {
		t.Errorf("consume: got %s, want %q in it", r, want)
	}
}

// The error of consume names the missing permission: to read the queue, or to create it.
func TestConsumeNamesTheMissingPermission(t *testing.T) {
	for permission, queue := range map[amqptest.Permission]string{amqptest.PermissionRead: "orders", amqptest.PermissionConfigure: "new"} {
		b := clitest.NewBroker(t, amqptest.Options{})
		b.Fill(t, "orders", 1)
		t.Cleanup(b.Deny("", permission, "^"+queue+"$"))
		r := clitest.Expect(t, 1, "consume", "--queue", queue, "--url", b.URL)
		if want := "the user needs the permission to " + string(permission) + " the queue, see docs/permissions.md"; !strings.Contains(r.Stderr, want) {
			t.Errorf("consume --queue %s: got %s, want %q in it", queue, r, want)
		}
	}
}

func TestConsumeKeepsMessagesThatItCannotPrint(t *testing.T) {
	for _, flags := range []string{"", "--json", "--count 9", "--count 9 --prefetch 1"} {
		t.Run(flags, func(t *testing.T) {
			b := clitest.NewBroker(t, amqptest.Options{})
			b.Fill(t, "orders", 10)
			var errs strings.Builder
			args := append(strings.Fields(flags), "consume", "--queue", "orders", "--url", b.URL)
			code := clitest.RunTo(t.Context(), &fullDisk{lines: 4}, &errs, args...)
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if n := b.Ready(t, "orders"); n != 6 {
				t.Errorf("after 4 of 10 messages were printed, %d are left in the queue, want 6", n)
			}
			if want := "it returns to the queue: no space left on device"; !strings.Contains(errs.String(), want) {
				t.Errorf("got the errors %s\nwant %s in them", errs.String(), want)
			}
		})
	}
}

// A message that another program has published to the queue before it was due is printed unchanged, with one note. A
// message that is early by a small clock difference or by its lead is held until it is due.
func TestConsumeOfEarlyMessages(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	put := func(id string, in time.Duration, headers amqp.Table) {
		t.Helper()
		headers[amqpx.HeaderDue] = time.Now().Add(in).UnixMilli()
		b.FillWith(t, "orders", amqp.Publishing{MessageId: id, Headers: headers})
	}
	put("1h", time.Hour, amqp.Table{})
	put("2h", 2*time.Hour, amqp.Table{})
	put("19ms", 19*time.Millisecond, amqp.Table{})
	put("with a lead", 500*time.Millisecond, amqp.Table{"rabbitdelay-lead": int64(1000)})

	got := b.Run(t, "consume", "--queue", "orders", "--count", "4", "--timeout", "1m", "--json")
	if got.Code != 0 {
		t.Fatalf("consume: got %v, want exit code 0", got)
	}
	if n := b.Ready(t, "orders"); n != 0 {
		t.Errorf("%d messages are left in the queue, want 0", n)
	}
	if !strings.Contains(got.Stdout, `{"received":4,"early":2,`) {
		t.Errorf("got\n%s\nwant 4 messages, 2 of them early", got.Stdout)
	}
	var e struct{ Note string }
	if err := json.Unmarshal([]byte(got.Stderr), &e); err != nil {
		t.Fatalf("Stderr is %s (error %v), want one note as JSON", got.Stderr, err)
	}
	if !strings.HasPrefix(e.Note, "message 1h arrived 59m59.") {
		t.Errorf(`the note is %q, want it to begin with "message 1h arrived 59m59."`, e.Note)
	}
}

// In the summary, the lateness of a message without a delay counts from the time at which it was sent, as in its line.
// If no message has a due time, the summary contains no lateness.
func TestConsumeSumsLateness(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	b.FillWith(t, "immediate", amqp.Publishing{MessageId: "0", Headers: amqp.Table{amqpx.HeaderDue: int64(0)}})
	b.FillWith(t, "foreign", amqp.Publishing{MessageId: "1"})
	for queue, want := range map[string]string{
		"immediate": `{"received":1,"early":0,"lateness_ms":{"p50":0,"p99":0,"max":0}}`,
		"foreign":   `{"received":1,"early":null,"lateness_ms":null}`,
	} {
		got := b.Run(t, "consume", "--queue", queue, "--count", "1", "--timeout", "1m", "--json")
		if got.Code != 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("%s: got\n%s\nwant exit code 0 and\n%s", queue, got, want)
		}
	}
}

// cutAfterOne is an output that cuts the broker's connections when the first line is printed.
type cutAfterOne struct {
	strings.Builder
	broker *clitest.Broker
}

func (c *cutAfterOne) Write(p []byte) (int, error) {
	if c.Len() == 0 {
		c.broker.CutConnections()
	}
	return c.Builder.Write(p)
}

func TestConsumeContinuesAfterALostConnection(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	b.Fill(t, "orders", 2)
	out, errs := &cutAfterOne{broker: b}, &strings.Builder{}
	code := clitest.RunTo(t.Context(), out, errs, "consume", "--queue", "orders", "--count", "2", "--timeout", "1m", "--url", b.URL)
	if code != 0 {
		t.Errorf("exit code %d, want 0, output\n%serrors\n%s", code, out.String(), errs.String())
	}
	if n := b.Ready(t, "orders"); n != 0 {
		t.Errorf("%d messages are left in the queue, want 0", n)
	}
	if !strings.Contains(errs.String(), "the connection was lost; reconnecting") {
		t.Errorf("got the errors %s, want \"the connection was lost; reconnecting\" in them", errs.String())
	}
}
