package conformance_test

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// userHeadersOf returns the headers that neither rabbitdelay nor the broker has added.
func userHeadersOf(h amqp.Table) amqp.Table {
	own := amqp.Table{}
	for k, v := range h {
		if !strings.HasPrefix(k, "rabbitdelay-") && !strings.HasPrefix(k, "x-death") && k != "x-delay" &&
			k != topology.HeaderInstant && k != foreign.HeaderNServiceBusDelay && k != "x-delivery-count" &&
			!strings.HasPrefix(k, "x-first-death-") && !strings.HasPrefix(k, "x-last-death-") {
			own[k] = v
		}
	}
	return own
}

// everyType has a value of every type that an AMQP table can hold.
func everyType() amqp.Table {
	return amqp.Table{
		"bool": true, "int8": int8(-8), "uint8": uint8(200), "int16": int16(-16_000), "int32": int32(-32_000_000),
		"int64": int64(math.MinInt64), "float32": float32(1.5), "float64": math.Pi, "nothing": nil,
		"decimal": amqp.Decimal{Scale: 2, Value: 12345}, "text": "grüße, 世界", "empty": "",
		"bytes": []byte{0, 1, 255}, "instant": time.Unix(1_700_000_000, 0),
		"list":  []any{int64(1), "two", []any{true}, amqp.Table{"deep": "value"}},
		"table": amqp.Table{"a": int64(1), "b": amqp.Table{"c": []byte("d")}},
		"":      "a name of no bytes", strings.Repeat("n", 255): "a name of 255 bytes",
		"X-DEATH": "not the broker's", "x-user": "not the broker's either", "traceparent": "00-4bf9-00f0-01",
	}
}

// A message arrives exactly as it was sent.
func caseProperties(t *testing.T, c *cell) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	bodies := map[string][]byte{"nothing": nil, "every byte": every, "large": bytes.Repeat(every, 2000)}
	q := c.queue("properties")
	for id, body := range bodies {
		c.send(t, amqpx.Message{
			ID: id, Queue: q, Delay: time.Second, Body: body,
			ContentType: "application/x-ünusual", ContentEncoding: "identity", Type: strings.Repeat("t", 255),
			CorrelationID: "corr/1", ReplyTo: "replies.here", AppID: "app", Priority: 4, Headers: everyType(),
		})
	}
	for _, a := range take(t, c.plain(t, q), len(bodies), "deliveries") {
		notEarly(t, a)
		if body := bodies[a.MessageId]; !bytes.Equal(a.Body, body) {
			t.Errorf("message %s: got a body of %d bytes, want the body of %d bytes that was sent", a.MessageId, len(a.Body), len(body))
		}
		got := []any{a.ContentType, a.ContentEncoding, a.Type, a.CorrelationId, a.ReplyTo, a.AppId, a.Priority, a.Expiration, a.UserId}
		want := []any{"application/x-ünusual", "identity", strings.Repeat("t", 255), "corr/1", "replies.here", "app", uint8(4), "", ""}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("properties: got %v, want %v", got, want)
		}
		sent, arrived := everyType(), userHeadersOf(a.Headers)
		for k, v := range sent {
			if !reflect.DeepEqual(arrived[k], v) {
				t.Errorf("header %.20q: got %T %v, want %T %v", k, arrived[k], arrived[k], v, v)
			}
			delete(arrived, k)
		}
		if len(arrived) > 0 {
			t.Errorf("got additional headers %v, want none", arrived)
		}
	}
}

// A message is published to an exchange of any type with exactly its routing key, and the exchange routes it to exactly
// the right queues.
func caseExchangeDestinations(t *testing.T, c *cell) {
	long := strings.Repeat("k", topology.MaxRoutingKey)
	type example struct {
		kind, key string
		bound     string     // the key of the queue that gets the message
		other     string     // the key of the queue that does not get it
		arguments amqp.Table // arguments of the first binding
		headers   amqp.Table
	}
	examples := []example{
		{kind: "direct", key: "orders.paid", bound: "orders.paid", other: "orders"},
		{kind: "direct", key: "", bound: "", other: "other"},
		{kind: "direct", key: long, bound: long, other: long[1:]},
		{kind: "direct", key: "*.#", bound: "*.#", other: "a.b"},
		{kind: "topic", key: "a.b.c", bound: "a.*.c", other: "*.c"},
		{kind: "topic", key: "", bound: "#", other: "a"},
		{kind: "topic", key: "x." + long[2:], bound: "x.#", other: "y.#"},
		{kind: "topic", key: "%.:.ü", bound: "%.:.*", other: "%.*"},
		{kind: "fanout", key: "", bound: ""},
		{kind: "fanout", key: "ignored", bound: "different"},
		{
			kind: "headers", key: "", arguments: amqp.Table{"x-match": "all", "region": "eu"},
			headers: amqp.Table{"region": "eu"}, other: "headers",
		},
		{
			kind: "headers", key: "kept", arguments: amqp.Table{"x-match": "any", "tier": int64(1), "region": "us"},
			headers: amqp.Table{"tier": int64(1)}, other: "headers",
		},
	}
	var checks []func()
	for i, e := range examples {
		name := c.prefix + "-x" + string(rune('a'+i))
		c.ownExchange(name)
		c.ownQueue(topology.Destination{Exchange: name, RoutingKey: e.key}.TargetQueue(c.prefix))
		top := topology.Topology{
			Exchanges: []topology.Exchange{{Name: name, Kind: e.kind}},
			Queues:    []topology.Queue{{Name: c.queue("x-in-" + name), Type: c.queueType}, {Name: c.queue("x-out-" + name), Type: c.queueType}},
		}
		in, out := top.Queues[0].Name, top.Queues[1].Name
		top.Bindings = []topology.Binding{{Exchange: name, Queue: in, RoutingKey: e.bound, Arguments: e.arguments}}
		switch e.other {
		case "":
		case "headers":
			top.Bindings = append(top.Bindings, topology.Binding{Exchange: name, Queue: out, Arguments: amqp.Table{"x-match": "all", "region": "asia"}})
		default:
			top.Bindings = append(top.Bindings, topology.Binding{Exchange: name, Queue: out, RoutingKey: e.other})
		}
		suite.Eventually(t, "exchange and queues of "+e.kind, func() bool { // a broker under load may close a connection
			err := c.client.Apply(t.Context(), top)
			if err != nil {
				t.Logf("%s %.20q: %v", e.kind, e.key, err)
			}
			return err == nil
		})
		body := []byte(e.kind + " " + e.key)
		for _, delay := range []time.Duration{time.Second, 0} {
			c.send(t, amqpx.Message{ID: delay.String(), Exchange: name, RoutingKey: e.key, Delay: delay, Body: body, Headers: e.headers})
		}
		inbox, outbox := c.plain(t, in), c.plain(t, out)
		checks = append(checks, func() {
			for _, a := range take(t, inbox, 2, e.kind+" "+e.key) {
				notEarly(t, a)
				if a.Exchange != name || a.RoutingKey != e.key || !bytes.Equal(a.Body, body) {
					t.Errorf("%s %.20q: got %v, want Exchange = %v, RoutingKey = %v and %v", e.kind, e.key, a, name, e.key, body)
				}
				if got, want := a.Headers[amqpx.HeaderDestination], name+":"+e.key; got != want {
					t.Errorf("header %s is %v, want %q", amqpx.HeaderDestination, got, want)
				}
				if got := userHeadersOf(a.Headers); len(got) != len(e.headers) {
					t.Errorf("%s %.20q: headers %v, want %v", e.kind, e.key, got, e.headers)
				}
			}
			c.nothing(t, in, inbox)
			c.nothing(t, out, outbox)
		})
	}
	for _, check := range checks {
		check()
	}
	err := c.client.Send(t.Context(), amqpx.Message{Exchange: c.prefix + "-missing", RoutingKey: "k", Delay: time.Second})
	if de, ok := errors.AsType[*topology.DestinationError](err); !ok || de.Destination.Exchange != c.prefix+"-missing" {
		t.Errorf("an exchange that does not exist: got %v, want a *topology.DestinationError", err)
	}
	// The default exchange routes by the queue's name.
	q := c.queue("default-exchange")
	c.send(t, amqpx.Message{ID: "default", RoutingKey: q, Delay: time.Second})
	if a := take(t, c.plain(t, q), 1, "the default exchange's message")[0]; a.MessageId != "default" {
		t.Errorf(`got %v, want MessageId = "default"`, a)
	}
}

// Queues receive only their own messages, even if their names are parts of each other or look like wildcards, digits or
// escapes.
func caseSimilarNames(t *testing.T, c *cell) {
	base := c.prefix + "-b"
	names := []string{
		base, "a." + base, "a.b." + base, base + ".a", base + ".a.b", "*." + base, "#." + base, base + ".*", base + ".#",
		"%2A." + base, "*a." + base, "%." + base, "0." + base, "0.0.1." + base, "ttl.1s." + base, "plugin." + base,
		"clock.0.0.0.0.1.0." + base, base + ".", "." + base, base + "..a", " " + base, base + "ü",
		base + ":a", strings.ToUpper(base),
	}
	// Find the longest name that fits into a routing key together with the words that the strategy adds.
	longest := base + strings.Repeat(".l", 128)
	for {
		if _, err := c.client.Strategy().Route(topology.Destination{Queue: longest}, 0, 0); err == nil {
			break
		}
		longest = longest[:len(longest)-1]
	}
	names = append(names, longest)

	round := func(name string, n string) amqpx.Message {
		return amqpx.Message{ID: n + " " + name[:min(200, len(name))], Queue: name, Delay: time.Second}
	}
	inboxes := map[string]<-chan arrival{}
	// The dead-letter queue of the destination with the longest name must have a valid name too.
	for _, name := range names {
		c.destination(name)
		c.send(t, round(name, "first"))
		inboxes[name] = c.plain(t, name)
	}
	check := func(n string) {
		for _, name := range names {
			if a := take(t, inboxes[name], 1, name)[0]; a.MessageId != round(name, n).ID {
				t.Errorf("destination %s received %v, want message %s", name, a, round(name, n).ID)
			}
		}
	}
	check("first")
	for _, name := range names {
		c.send(t, round(name, "second"))
	}
	check("second")
	for _, name := range names {
		c.nothing(t, name, inboxes[name])
	}
}

func caseNamesTooLong(t *testing.T, c *cell) {
	for _, n := range []int{255, 250} {
		err := c.client.Send(t.Context(), amqpx.Message{Queue: strings.Repeat("q", n), Delay: time.Second})
		if _, ok := errors.AsType[*topology.KeyError](err); !ok {
			t.Errorf("a queue name of %d bytes: got error %v, want a *topology.KeyError", n, err)
		}
	}
	if err := c.client.Send(t.Context(), amqpx.Message{Queue: strings.Repeat("q", 256), Delay: time.Second}); !errors.Is(err, amqpx.ErrMessage) {
		t.Errorf("a queue name of 256 bytes: got error %v, want amqpx.ErrMessage", err)
	}
	for _, own := range []string{topology.ParkedQueue(c.prefix), topology.DeliveryExchange(c.prefix), c.prefix + ".bucket.1s"} {
		if err := c.client.Send(t.Context(), amqpx.Message{Queue: own, Delay: time.Second}); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("destination %s: got %v, want topology.ErrDestination", own, err)
		}
	}
}

// Several strategies and layouts with the same prefix serve one destination side by side.
func caseSideBySide(t *testing.T, c *cell) {
	other := topology.Classic
	if c.queueType == topology.Classic {
		other = topology.Quorum
	}
	must := func(s amqpx.Strategy, err error) amqpx.Strategy {
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	bucket := func(cfg dlx.BucketConfig) amqpx.Strategy {
		cfg.Prefix = c.prefix
		s, err := dlx.NewBucket(cfg)
		return must(s, err)
	}
	ttl := func(cfg dlx.TTLConfig) amqpx.Strategy {
		cfg.Prefix = c.prefix
		s, err := dlx.NewTTL(cfg)
		return must(s, err)
	}
	strategies := []amqpx.Strategy{
		bucket(dlx.BucketConfig{Radices: []int{10, 10}, QueueType: c.queueType}),
		bucket(dlx.BucketConfig{Radices: []int{10, 10}, QueueType: other}),
		bucket(dlx.BucketConfig{Radices: []int{4, 4, 4}, QueueType: c.queueType}),
		bucket(dlx.BucketConfig{Radices: []int{20, 5}, Resolution: 50 * time.Millisecond, QueueType: c.queueType}),
		bucket(dlx.BucketConfig{Layout: dlx.LayoutBinary, QueueType: topology.Classic}),
		ttl(dlx.TTLConfig{Delays: []time.Duration{time.Second}, QueueType: other}),
		ttl(dlx.TTLConfig{Delays: []time.Duration{time.Second, 2 * time.Second, 700 * time.Millisecond}, QueueType: c.queueType}),
	}
	if c.strategy == "bucket clock" { // the same digits as the clock layout, with another resolution
		strategies = append(strategies, bucket(dlx.BucketConfig{Resolution: 100 * time.Millisecond, QueueType: c.queueType}))
	}
	if c.pluginToo {
		s, err := plugin.New(plugin.Config{Prefix: c.prefix})
		strategies = append(strategies, must(s, err))
	}
	clients := []*amqpx.Client{c.client}
	for _, s := range strategies {
		clients = append(clients, c.open(t, s))
	}
	q, longer := c.queue("shared"), "a."+c.queue("shared")
	c.destination(longer)
	var inbox, beside <-chan arrival
	for _, n := range []string{"first", "second"} {
		var want []string
		for i, client := range clients {
			m := amqpx.Message{ID: n + " " + string(rune('a'+i)), Queue: q, Delay: time.Second}
			if err := client.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			want = append(want, m.ID)
			m.Queue = longer
			if err := client.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		if inbox == nil {
			inbox, beside = c.plain(t, q), c.plain(t, longer)
		}
		for _, in := range []<-chan arrival{inbox, beside} {
			var got []string
			for _, a := range take(t, in, len(clients), n+" round") {
				notEarly(t, a)
				got = append(got, a.MessageId)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
	c.nothing(t, q, inbox)
	c.nothing(t, longer, beside)
}
