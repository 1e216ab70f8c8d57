package messages_test

import (
	"bytes"
	"math"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A message is saved to a file and sent again with all its properties, even though a broker may change the types of its
// headers.
func TestDiscardKeepsEverything(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := suite.Requeuer(t, v)
		suite.Makes(t, v, "q", suite.QuorumQueue)
		suite.Makes(t, v, "q.dead", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		ch := v.Channel(t)
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		sent := amqp.Publishing{
			MessageId: "id", Timestamp: time.Unix(1_700_000_000, 0), Type: "t", ContentType: "text/plain",
			ContentEncoding: "x", DeliveryMode: amqp.Persistent, Priority: 3,
			CorrelationId: "c", ReplyTo: "r", AppId: "app", Body: append([]byte{0, 0xff}, bytes.Repeat([]byte("ü"), 1<<20)...),
			Headers: amqp.Table{
				amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: "q",
				"int8": int8(-8), "int16": int16(-16), "int32": int32(-32), "int64": int64(math.MaxInt64),
				"uint8": uint8(8), "uint16": uint16(16), "uint32": uint32(math.MaxUint32),
				"float32": float32(0.1), "float64": 1e300, "decimal": amqp.Decimal{Scale: 2, Value: 1999},
				"time": time.Unix(1, 0), "bytes": []byte{0, 0xff}, "nil": nil, "bool": true,
				"string": "\xff", "table": amqp.Table{"n": int32(1), "t": amqp.Table{"time": time.Unix(2, 0)}},
				"array": []any{int32(1), int64(1), "two", amqp.Table{"x": []byte("y")}},
			},
		}
		put := func() amqp.Delivery {
			t.Helper()
			dc, err := ch.PublishWithDeferredConfirm("", "q.dead", true, false, sent)
			if err != nil || !dc.Wait() {
				t.Fatalf("publishing to q.dead: got error %v, want nil and a confirm", err)
			}
			suite.Known(t, v, "q.dead")
			p, err := inspect.Peek(t.Context(), lookingInto(t, v), "q.dead", inspect.PeekOptions{Management: v.Management})
			if err != nil || len(p.Messages) != 1 {
				t.Fatalf("peeking into q.dead: got error %v and %+v, want no error and one message", err, p)
			}
			return amqp.Delivery{Headers: p.Messages[0].Headers}
		}
		lay := put()
		path := filepath.Join(t.TempDir(), "q.jsonl")
		f, err := inspect.CreateSaveFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := inspect.Requeue(t.Context(), c, inspect.RequeueOptions{Queue: "q.dead", Discard: true, Save: f.Save, Management: v.Management})
		if err != nil || r.Discarded != 1 || f.Close() != nil {
			t.Fatalf("Requeue: got error %v and %+v, want no error, Discarded = 1 and no error from Close", err, r)
		}
		for m, err := range inspect.SavedIn(path) {
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(m.Message.Body, sent.Body) {
				t.Errorf("saved message: the body is %.99q, want %.99q", m.Message.Body, sent.Body)
			}
			for _, c := range []struct {
				field     string
				got, want any
			}{
				{"Timestamp", m.Message.Timestamp, sent.Timestamp},
				{"Priority", m.Message.Priority, sent.Priority},
				{"ReplyTo", m.Message.ReplyTo, sent.ReplyTo},
			} {
				if c.got != c.want {
					t.Errorf("saved message: %s is %v, want %v", c.field, c.got, c.want)
				}
			}
			for name, want := range sent.Headers {
				if got := lay.Headers[name]; !reflect.DeepEqual(m.Message.Headers[name], got) {
					t.Errorf("saved message: header %s is %#v, want %#v as in the queue", name, m.Message.Headers[name], got)
				} else if name != "decimal" && !reflect.DeepEqual(got, want) {
					t.Errorf("message in the queue: header %s is %#v, want %#v as published", name, got, want)
				}
			}
		}
		if r, err = inspect.Requeue(t.Context(), c, inspect.RequeueOptions{From: inspect.SavedIn(path)}); err != nil || r.Sent != 1 {
			t.Fatalf("got %v, %+v, want no error and Sent = 1", err, r)
		}
		got, ok, err := v.Channel(t).Get("q", true)
		if err != nil || !ok {
			t.Fatalf("basic.get from q: got ok = %t, error %v, want a message", ok, err)
		}
		for _, c := range []struct{ field, got, want string }{
			{"Body", string(got.Body), string(sent.Body)},
			{"MessageId", got.MessageId, "id"},
			{"Type", got.Type, "t"},
			{"CorrelationId", got.CorrelationId, "c"},
			{"ContentEncoding", got.ContentEncoding, "x"},
			{"AppId", got.AppId, "app"},
		} {
			if c.got != c.want {
				t.Errorf("resent message: %s is %.99q, want %.99q", c.field, c.got, c.want)
			}
		}
		for name := range sent.Headers {
			if want := lay.Headers[name]; inspect.ReasonRejected != want && name != amqpx.HeaderQueue && !reflect.DeepEqual(got.Headers[name], want) {
				t.Errorf("resent message: header %s is %#v, want %#v as in the dead letter", name, got.Headers[name], want)
			}
		}
	})
}
