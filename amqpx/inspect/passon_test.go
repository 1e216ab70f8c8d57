package inspect_test

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A republished message arrives when its due time is reached by the clock to which the due time refers. It keeps its
// supported properties, including the headers from rabbitdelay.
func TestPassOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		s, err := dlx.NewBucket(dlx.BucketConfig{Layout: dlx.LayoutHex})
		if err != nil {
			t.Fatal(err)
		}
		c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Strategy: s})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(t.Context()) }()
		raw := amqp.Delivery{
			MessageId: "m", UserId: "guest", Timestamp: time.Unix(1_700_000_000, 0), Type: "t", Priority: 3, Body: []byte("b"), Expiration: "5",
			Headers: amqp.Table{
				"x-delay": int32(9), "x-death": []any{}, "CC": []any{"k"}, "own": int16(1),
				amqpx.HeaderDue: int64(1), amqpx.HeaderAttempt: int64(3), amqpx.HeaderVersion: int64(4), amqpx.HeaderError: "broken",
			},
		}
		if lost := inspect.UnsupportedProperties(raw); !reflect.DeepEqual(lost, []string{"CC", "expiration", "x-death"}) {
			t.Errorf("UnsupportedProperties: got %v, want [CC expiration x-death]", lost)
		}
		const ahead = time.Hour
		at := time.Now().Add(ahead).Add(time.Minute)
		if err := inspect.Republish(t.Context(), c, raw, topology.Destination{Queue: "q"}, at, ahead); err != nil {
			t.Fatal(err)
		}
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		in, err := ch.Consume("q", "", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		d := <-in
		if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("the message arrived after %v, want 1m to %v", took, time.Minute+time.Second)
		}
		want := amqp.Table{"own": int16(1), amqpx.HeaderDue: at.UnixMilli(), amqpx.HeaderAttempt: int64(3), amqpx.HeaderVersion: int64(4),
			amqpx.HeaderError: "broken"}
		for k, v := range want {
			if !reflect.DeepEqual(d.Headers[k], v) {
				t.Errorf("header %s: got %v, want %v", k, d.Headers[k], v)
			}
		}
		for _, gone := range []string{"x-delay", "CC"} {
			if v := d.Headers[gone]; v != nil {
				t.Errorf("header %s: got %v, want nil", gone, v)
			}
		}
		if d.Expiration != "" {
			t.Errorf(`the message arrived with the expiration %s, want ""`, d.Expiration)
		}
		if !d.Timestamp.Equal(raw.Timestamp) {
			t.Errorf("the message arrived with the timestamp %v, want %v", d.Timestamp, raw.Timestamp)
		}
		if got := fmt.Sprint(d.MessageId, " ", d.UserId, " ", d.Type, " ", d.Priority); got != "m guest t 3" {
			t.Errorf("id, user, type and priority: got %s, want m guest t 3", got)
		}
	})
}
