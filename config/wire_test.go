package config

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// wireFile contains the test vectors for docs/wire.md: the results that a producer in any language must compute.
const wireFile = "../docs/wire.json"

// wireVersion increases when a program that follows an earlier docs/wire.md would be wrong.
const wireVersion = 2

type wireVectors struct {
	Version  int
	Layouts  []wireLayout
	Messages []wireMessage
	Retries  []wireRetry
}

type wireLayout struct {
	Configuration json.RawMessage
	MaxDelay      int64
	Destinations  []wireDestination
	Routes        []wireRoute
}

type wireTarget struct {
	Queue      string `json:"queue,omitempty"`
	Exchange   string `json:"exchange,omitempty"`
	RoutingKey string `json:"routing_key,omitempty"`
}

func (t wireTarget) destination() topology.Destination {
	return topology.Destination{Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey}
}

// wireDestination describes the objects that must exist before the first message to a destination is sent.
type wireDestination struct {
	Destination wireTarget    `json:"destination"`
	Queues      []wireQueue   `json:"queues,omitempty"`
	Bindings    []wireBinding `json:"bindings,omitempty"`
	Refused     bool          `json:"refused,omitempty"`
}

type wireQueue struct {
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
}

type wireBinding struct {
	Exchange   string `json:"exchange"`
	Queue      string `json:"queue"`
	RoutingKey string `json:"routing_key"`
}

// wireRoute contains the exchange and routing key to use for a delay, or says that the delay or the destination is
// refused.
type wireRoute struct {
	Destination wireTarget `json:"destination"`
	DelayMS     int64      `json:"delay_ms"`
	*wirePublish
	Refused bool `json:"refused,omitempty"`
}

type wirePublish struct {
	Exchange   string         `json:"exchange"`
	RoutingKey string         `json:"routing_key"`
	Headers    map[string]any `json:"headers,omitempty"`
	Mandatory  bool           `json:"mandatory"`
	WaitsMS    int64          `json:"waits_ms"`
	Hops       int            `json:"hops"`
}

// wireMessage is the message that is published, in the first layout, for a due time. The due time was requested, or is
// the producer's time plus a delay.
type wireMessage struct {
	Queue      string         `json:"queue"`
	NowMS      int64          `json:"now_ms"`
	DelayMS    int64          `json:"delay_ms,omitempty"`
	DueMS      int64          `json:"due_ms"`
	LeadMS     int64          `json:"lead_ms,omitempty"`
	OffsetMS   int64          `json:"clock_offset_ms,omitempty"`
	TimestampS int64          `json:"timestamp_s"`
	Exchange   string         `json:"exchange"`
	RoutingKey string         `json:"routing_key"`
	Headers    map[string]any `json:"headers"`
}

type wireRetry struct {
	BackoffMS    int64   `json:"backoff_ms"`
	MaxBackoffMS int64   `json:"max_backoff_ms"`
	Multiplier   float64 `json:"multiplier"`
	Jitter       float64 `json:"jitter"`
	Attempt      int     `json:"attempt"`
	Random       float64 `json:"random"`
	DelayMS      int64   `json:"delay_ms"`
}

// wireConfigurations lists configurations, each with the destinations and delays of its vectors. There are also vectors
// for 0 and the longest delay, and for delays that are refused.
var wireConfigurations = []struct {
	delay   string
	delays  []time.Duration
	targets []wireTarget
}{
	{`{}`, wireDelays, wireTargets},
	{`{"bucket":{"resolution":"100ms"}}`, wireDelays, wireTargets[:2]},
	{`{"bucket":{"resolution":"5s"}}`, wireDelays, wireTargets[:2]},
	{`{"bucket":{"layout":"hex"}}`, wireDelays, wireTargets[:2]},
	{`{"bucket":{"layout":"binary"}}`, wireDelays, wireTargets[:2]},
	{`{"bucket":{"radices":[10,60,60,24,30],"resolution":"1s"}}`, wireDelays, wireTargets[:2]},
	{`{"queue_type":"classic","prefix":"shop"}`, wireDelays, wireTargets},
	{`{"bucket":{"layout":"hex"},"queue_type":"classic"}`, wireDelays, wireTargets[:2]},
	{`{"topic_permissions":true}`, wireDelays, wireTargets[:2]},
	{
		`{"strategy":"ttl","ttl":{"delays":["1500ms","1m","15m","2d"]}}`,
		[]time.Duration{1500 * time.Millisecond, time.Minute, 15 * time.Minute, time.Second}, wireTargets[:2],
	},
	{`{"strategy":"ttl","ttl":{"delays":["1m","15m"],"round_up":true},"queue_type":"classic"}`, []time.Duration{time.Second, 61 * time.Second}, wireTargets[:2]},
	{`{"strategy":"plugin"}`, wireDelays, wireTargets[:2]},
	{`{"bucket":{"layout":"nservicebus"}}`, wireDelays, wireForeignTargets},
	{`{"bucket":{"layout":"celery"}}`, wireDelays, wireForeignTargets},
}

var wireDelays = []time.Duration{
	time.Millisecond, 10 * time.Millisecond, 11 * time.Millisecond, 990 * time.Millisecond, time.Second,
	59*time.Second + 999*time.Millisecond, 90 * time.Second, time.Hour, 25 * time.Hour,
	40*24*time.Hour + 3*time.Hour + 5*time.Minute + 7*time.Second + 891*time.Millisecond,
}

// wireTargets lists destinations of all kinds, mainly ones that need escaping.
var wireTargets = []wireTarget{
	{Queue: "orders.expire"},
	{Queue: "orders.*"},
	{Queue: "#"},
	{Queue: "a*b.100%"},
	{Queue: "заказы"},
	{Exchange: "events", RoutingKey: "order.expired"},
	{Exchange: "events"},
	{Exchange: "a:b%c", RoutingKey: "x:y.#"},
	{Exchange: "events", RoutingKey: strings.Repeat("k", 200)},
	{RoutingKey: "orders.expire"},
	{Queue: strings.Repeat("q", 250)},
	{Queue: "delay.parked"},
	{Queue: "shop.parked"},
}

// wireForeignTargets lists queues that another system's programs declare.
var wireForeignTargets = []wireTarget{
	{Queue: "Sales.Orders"}, {Queue: "orders.*"}, {Exchange: "events", RoutingKey: "order.expired"},
	{Queue: "celery_delayed_3"},
}

func (l *wireLayout) fill(t *testing.T, delay string, delays []time.Duration, targets []wireTarget) {
	t.Helper()
	l.Configuration = json.RawMessage(`{"delay":` + delay + `}`)
	c, err := load(l.Configuration, Source{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Offline()
	if err != nil {
		t.Fatal(err)
	}
	l.MaxDelay = s.MaxDelay().Milliseconds()
	for _, target := range targets {
		l.Destinations = append(l.Destinations, c.wireDestination(s, target))
		l.Routes = append(l.Routes, routeVector(t, s, target, delays[0]))
	}
	all := append([]time.Duration{-time.Millisecond, 0}, delays[1:]...)
	for _, d := range append(all, s.MaxDelay(), s.MaxDelay()+time.Millisecond) {
		l.Routes = append(l.Routes, routeVector(t, s, targets[0], d))
	}
}

func (c *Config) wireDestination(s amqpx.Strategy, target wireTarget) wireDestination {
	v := wireDestination{Destination: target}
	dest := target.destination()
	if _, err := s.Route(dest, 0, 0); err != nil {
		v.Refused = true
		return v
	}
	own := *c
	own.Topology.Destinations = []topology.Destination{dest}
	for _, q := range own.ownQueues().Queues {
		v.Queues = append(v.Queues, wireQueue{q.Name, q.Table()})
	}
	for _, b := range s.Bindings(dest) {
		v.Bindings = append(v.Bindings, wireBinding{b.Exchange, b.Queue, b.RoutingKey})
	}
	return v
}

func routeVector(t *testing.T, s amqpx.Strategy, target wireTarget, delay time.Duration) wireRoute {
	t.Helper()
	v := wireRoute{Destination: target, DelayMS: delay.Milliseconds()}
	r, err := s.Route(target.destination(), delay, 0)
	switch {
	case errors.Is(err, topology.ErrDelay), errors.Is(err, topology.ErrDestination):
		v.Refused = true
		return v
	case err != nil:
		t.Fatal(err)
	}
	v.wirePublish = &wirePublish{r.Exchange, r.RoutingKey, r.Headers, r.Mandatory, r.Delay.Milliseconds(), r.Hops}
	return v
}

// wireMessages returns messages that a client has published to an in-memory broker, as they are stored in its queues.
func wireMessages(t *testing.T) (list []wireMessage) {
	t.Helper()
	const instant = 0
	for _, c := range []struct{ delay, until, lead, offset time.Duration }{
		{delay: 90 * time.Second},
		{delay: 90*time.Second + 400*time.Millisecond, lead: 400 * time.Millisecond},
		{delay: 1234 * time.Millisecond, lead: 400 * time.Millisecond},
		{delay: 300 * time.Millisecond, lead: 400 * time.Millisecond},
		{delay: 400 * time.Millisecond, lead: 400 * time.Millisecond},
		{delay: 20 * time.Millisecond, lead: 400 * time.Millisecond},
		{delay: 19 * time.Millisecond, lead: 400 * time.Millisecond},
		{delay: instant, until: 90 * time.Second},
		{delay: instant, until: time.Hour + time.Millisecond, lead: time.Minute},
		{delay: instant, until: 90 * time.Second, offset: 19 * time.Millisecond},
		{delay: instant, until: 90 * time.Second, offset: 250 * time.Millisecond},
		{delay: instant, until: 90*time.Second + 400*time.Millisecond, lead: 400 * time.Millisecond, offset: -time.Hour},
		{delay: instant, until: 7 * time.Second, lead: 10 * time.Second, offset: 250 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{})
			defer srv.Close()
			client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Lead: c.lead})
			if err != nil {
				t.Fatalf("message %+v: got %v, want no error", c, err)
			}
			defer func() { _ = client.Close(context.Background()) }()
			now := time.Now()
			m := amqpx.Message{Queue: "orders.expire", Delay: c.delay, ClockOffset: c.offset}
			if c.until > 0 {
				m.DeliverAt = now.Add(c.until + c.offset)
			}
			if err := client.Send(t.Context(), m); err != nil {
				t.Fatalf("message %+v: got %v, want no error", c, err)
			}
			list = append(list, wireMessage{
				Queue: m.Queue, NowMS: now.UnixMilli(), DelayMS: c.delay.Milliseconds(), DueMS: now.Add(c.delay + c.until + c.offset).UnixMilli(),
				LeadMS: c.lead.Milliseconds(), OffsetMS: c.offset.Milliseconds(),
			})
			list[len(list)-1].read(t, srv)
		})
	}
	return list
}

// read removes the message from the queue in which it waits, and records it.
func (m *wireMessage) read(t *testing.T, srv *amqptest.Server) {
	t.Helper()
	conn, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for _, queue := range srv.Queues() {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			m.Exchange, m.RoutingKey, m.Headers, m.TimestampS = d.Exchange, d.RoutingKey, d.Headers, d.Timestamp.Unix()
			return
		}
	}
	t.Fatal("no queue has the published message, want one that has it")
}

func wireRetries() (list []wireRetry) {
	for _, r := range []topology.Retry{
		{},
		{Backoff: 5 * time.Second, MaxBackoff: time.Minute, Multiplier: 3, Jitter: 0.5},
	} {
		r = r.WithDefaults()
		for _, attempt := range []int{1, 2, 4, 30} {
			for _, random := range []float64{0, 0.25, 1} {
				list = append(list, wireRetry{
					r.Backoff.Milliseconds(), r.MaxBackoff.Milliseconds(), r.Multiplier, r.Jitter,
					attempt, random, r.Delay(attempt, random).Milliseconds(),
				})
			}
		}
	}
	return list
}

// text formats the vectors as JSON, with one line for each, so that a diff shows what changes.
func (v wireVectors) text(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	lines := func(name string, n int, item func(i int) any) {
		fmt.Fprintf(&b, "%q: [\n", name)
		for i := range n {
			line, err := json.Marshal(item(i))
			if err != nil {
				t.Fatal(err)
			}
			b.Write(line)
			if i < n-1 {
				b.WriteByte(',')
			}
			b.WriteByte('\n')
		}
		b.WriteString("]")
	}
	fmt.Fprintf(&b, "{\"version\": %d,\n\"layouts\": [\n", v.Version)
	for i, l := range v.Layouts {
		if i > 0 {
			b.WriteString(",\n")
		}
		fmt.Fprintf(&b, "{\"configuration\": %s,\n\"max_delay_ms\": %d,\n", l.Configuration, l.MaxDelay)
		lines("destinations", len(l.Destinations), func(i int) any { return l.Destinations[i] })
		b.WriteString(",\n")
		lines("routes", len(l.Routes), func(i int) any { return l.Routes[i] })
		b.WriteString("}")
	}
	b.WriteString("],\n")
	lines("messages", len(v.Messages), func(i int) any { return v.Messages[i] })
	b.WriteString(",\n")
	lines("retries", len(v.Retries), func(i int) any { return v.Retries[i] })
	b.WriteString("}\n")
	return b.Bytes()
}

// The vectors in docs/wire.json match the code. If the code changes, programs in other languages that follow the
// vectors would send messages to the wrong place.
func TestWireVectors(t *testing.T) {
	v := wireVectors{Version: wireVersion, Messages: wireMessages(t), Retries: wireRetries()}
	for _, c := range wireConfigurations {
		var l wireLayout
		l.fill(t, c.delay, c.delays, c.targets)
		v.Layouts = append(v.Layouts, l)
	}
	want := v.text(t)
	if !json.Valid(want) {
		t.Fatal("the encoded vectors are invalid JSON, want valid JSON")
	}
	if *update {
		if err := os.WriteFile(wireFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(wireFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("docs/wire.json does not match the code. If programs in other languages must follow the change, run " +
			"go test ./config -run TestWireVectors -update, increase wireVersion and change docs/wire.md. Otherwise fix the code")
	}
}

// docs/wire.md states the version of the vectors.
func TestWirePageVersion(t *testing.T) {
	page, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("Version %d.", wireVersion); !strings.Contains(string(page), want) {
		t.Errorf("docs/wire.md does not contain %q, want the version of the vectors", want)
	}
}
