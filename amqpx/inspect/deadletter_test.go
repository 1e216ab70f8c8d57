package inspect_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ReadDeadLetter returns where, why and when a message died. Consumers and brokers record this in different headers.
func TestReadDeadLetter(t *testing.T) {
	sent, died := time.Unix(1000, 0), time.Unix(2000, 0)
	death := func(queue, reason string, at time.Time) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "time": at, "exchange": "delay.deliver", "routing-keys": []any{"clock.0.0.0.0.0.0." + queue}}
	}
	delayed := death("delay.bucket.1m", "expired", time.Unix(1500, 0))
	for name, c := range map[string]struct {
		queue, exchange, key string
		headers              amqp.Table
		want                 inspect.DeadLetter
	}{
		"by a consumer": {"q.dead", "", "q.dead", amqp.Table{
			amqpx.HeaderReason: "attempts", amqpx.HeaderError: "no", amqpx.HeaderQueue: "q", amqpx.HeaderDestination: "q", amqpx.HeaderAttempt: int64(5),
			amqpx.HeaderAttempts: []any{"1970-01-01T00:30:00Z earlier", "1970-01-01T00:33:20Z no"}, header.Requeued: int64(1_900_000),
		}, inspect.DeadLetter{
			Delivery: &amqpx.Delivery{Attempt: 5, RoutingKey: "q"}, Reason: inspect.ReasonAttempts, Error: "no", Died: died, Requeued: time.Unix(1900, 0),
			Attempts: []string{"1970-01-01T00:30:00Z earlier", "1970-01-01T00:33:20Z no"}, Destination: topology.Destination{Queue: "q"},
		}},
		"from an exchange": {"q.dead", "", "q.dead", amqp.Table{
			amqpx.HeaderReason: "rejected", amqpx.HeaderQueue: "q", amqpx.HeaderDestination: "x:a.b", header.Exchange: "x", header.RoutingKey: "a.b",
		}, inspect.DeadLetter{
			Delivery: &amqpx.Delivery{Attempt: 1, Exchange: "x", RoutingKey: "a.b"}, Reason: inspect.ReasonRejected, Died: sent,
			Destination: topology.Destination{Queue: "q"},
		}},
		"by the broker": {"q.dead", "", "q.dead", amqp.Table{
			amqpx.HeaderError: "tried once", amqpx.HeaderAttempt: int64(2), "x-death": []any{death("q", "delivery_limit", died), delayed},
		}, inspect.DeadLetter{
			Delivery: &amqpx.Delivery{Attempt: 2, RoutingKey: "q"}, Reason: inspect.ReasonDeliveryLimit, Error: "tried once", Died: died,
			Destination: topology.Destination{Queue: "q"},
		}},
		"parked": {"delay.parked", "delay.deliver", "clock.0.0.0.1.0.0.%2A.q", amqp.Table{"x-death": []any{delayed}}, inspect.DeadLetter{
			Delivery: &amqpx.Delivery{Attempt: 1, RoutingKey: "*.q"}, Reason: inspect.ReasonParked, Died: time.Unix(1500, 0),
			Destination: topology.Destination{Queue: "*.q"},
		}},
		"parked for an exchange": {"delay.parked", "delay.deliver", "plugin.delay.route.a%253Ab:c:d",
			amqp.Table{amqpx.HeaderDestination: "a:b:c:d"}, inspect.DeadLetter{
				Delivery: &amqpx.Delivery{Attempt: 1}, Reason: inspect.ReasonParked, Died: sent,
				Destination: topology.Destination{Exchange: "a:b", RoutingKey: "c:d"},
			}},
		"parked by a custom strategy": {"delay.parked", "delay.deliver", "mine.17.delay.route.a%253Ab:c:d",
			amqp.Table{amqpx.HeaderDestination: "a:b:c:d"}, inspect.DeadLetter{
				Delivery: &amqpx.Delivery{Attempt: 1}, Reason: inspect.ReasonParked, Died: sent,
				Destination: topology.Destination{Exchange: "a:b", RoutingKey: "c:d"},
			}},
		"alive": {"q", "delay.deliver", "clock.0.0.0.1.0.0.q", amqp.Table{"x-death": []any{delayed}}, inspect.DeadLetter{
			Delivery: &amqpx.Delivery{Attempt: 1}, Died: sent,
		}},
		"headers of other types": {"q.dead", "", "q.dead", amqp.Table{
			amqpx.HeaderReason: 1, amqpx.HeaderQueue: 2, amqpx.HeaderError: 3, amqpx.HeaderAttempts: []any{4}, header.Requeued: "5",
			"x-death": []any{6, amqp.Table{"queue": 7}},
		}, inspect.DeadLetter{Delivery: &amqpx.Delivery{Attempt: 1}, Died: sent}},
	} {
		t.Run(name, func(t *testing.T) {
			raw := amqp.Delivery{MessageId: "1", Timestamp: sent, Exchange: c.exchange, RoutingKey: c.key, Headers: c.headers, Body: []byte("b")}
			c.want.ID, c.want.Queue, c.want.Timestamp, c.want.Headers, c.want.Body = "1", c.queue, sent, c.headers, raw.Body
			got := inspect.ReadDeadLetter(raw, c.queue, "delay")
			if !got.Died.Equal(c.want.Died) || !got.Requeued.Equal(c.want.Requeued) {
				t.Errorf("ReadDeadLetter: got Died = %v and Requeued = %v, want %v and %v", got.Died, got.Requeued, c.want.Died, c.want.Requeued)
			}
			got.Died, got.Requeued = c.want.Died, c.want.Requeued
			if got, want := fmt.Sprintf("%+v", *got.Delivery), fmt.Sprintf("%+v", *c.want.Delivery); got != want {
				t.Errorf("ReadDeadLetter: Delivery:\n got %s\nwant %s", got, want)
			}
			got.Delivery, c.want.Delivery = nil, nil
			if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", c.want); got != want {
				t.Errorf("ReadDeadLetter:\ngot  %s\nwant %s", got, want)
			}
		})
	}
}

// FuzzReadDeadLetter checks that messages with arbitrary headers, which any publisher can send, can be read.
func FuzzReadDeadLetter(f *testing.F) {
	for _, h := range []amqp.Table{
		{"x-death": []any{amqp.Table{"queue": "q", "reason": "rejected", "time": time.Unix(1, 0), "exchange": "", "routing-keys": []any{"q"}, "count": int64(1)}}},
		{amqpx.HeaderReason: "attempts", amqpx.HeaderQueue: "q", amqpx.HeaderAttempts: []any{"2026-01-02T08:00:00Z failed"}, amqpx.HeaderDue: int64(1)},
		{"x-first-death-queue": "delay.parked", amqpx.HeaderDestination: "q"},
	} {
		var e codec.Encoder
		e.Table(h)
		f.Add(e.Bytes(), "delay.deliver", "clock.0.0.0.0.0.0.q", "delay.parked")
	}
	f.Fuzz(func(t *testing.T, headers []byte, exchange, key, queue string) {
		d := codec.NewDecoder(headers)
		raw := amqp.Delivery{Headers: d.Table(), Exchange: exchange, RoutingKey: key}
		l := inspect.ReadDeadLetter(raw, queue, "delay")
		filter := inspect.DeadLetterFilter{OlderThan: time.Hour}
		if filter.Matches(&l, l.Died) {
			t.Fatalf("a filter for messages older than an hour matches %+v, which has just died, want no match", l)
		}
	})
}

// ReadDeadLetter sets every field of a Delivery that does not belong to a consumer.
func TestReadDeadLetterSetsEveryField(t *testing.T) {
	raw := amqp.Delivery{
		MessageId: "id", Redelivered: true, RoutingKey: "k", Exchange: "e", Body: []byte("b"), ContentType: "c", ContentEncoding: "g", Type: "t",
		CorrelationId: "o", ReplyTo: "r", AppId: "a", Priority: 1, Timestamp: time.Unix(1, 0), Expiration: "1", UserId: "u", DeliveryMode: 2,
		Headers: amqp.Table{header.Due: int64(1), header.Attempt: int64(2), header.Snoozes: int64(1), header.Version: int64(1), header.Created: int64(1)},
	}
	d := reflect.ValueOf(*inspect.ReadDeadLetter(raw, "q", "delay").Delivery)
	for i := range d.NumField() {
		if f := d.Type().Field(i); f.IsExported() && f.Name != "MaxAttempts" && d.Field(i).IsZero() {
			t.Errorf("ReadDeadLetter: Delivery.%s: got the zero value, want the value in the message", f.Name)
		}
	}
}
