package amqpx

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// offline returns a client without connections, for tests that do not need any.
func offline(t testing.TB, s Strategy) *Client {
	t.Helper()
	if s == nil {
		b, err := dlx.NewBucket(dlx.BucketConfig{})
		if err != nil {
			t.Fatal(err)
		}
		s = b
	}
	cfg := Config{URL: "amqp://127.0.0.1"}.WithDefaults()
	c := &Client{cfg: cfg, strategy: s, log: cfg.Logger, force: func(error) {}}
	return c
}

func TestPrepareRefusesBadMessages(t *testing.T) {
	c := offline(t, nil)
	long := strings.Repeat("x", 256)
	cases := map[string]struct {
		m     Message
		field string // Field of the MessageError
		says  string
	}{
		"no destination":           {Message{}, "Queue", "no destination"},
		"two destinations":         {Message{Queue: "q", Exchange: "e"}, "Queue", "give one destination"},
		"queue and key":            {Message{Queue: "q", RoutingKey: "k"}, "Queue", "give one destination"},
		"delay and time":           {Message{Queue: "q", Delay: 1, DeliverAt: time.Now()}, "DeliverAt", "set one"},
		"negative delay":           {Message{Queue: "q", Delay: -time.Second}, "Delay", "-1s is negative"},
		"negative tolerance":       {Message{Queue: "q", Tolerance: -1}, "Tolerance", "negative"},
		"delay without a unit":     {Message{Queue: "q", Delay: 30}, "Delay", "30*time.Second"},
		"tolerance without a unit": {Message{Queue: "q", Tolerance: 30}, "Tolerance", "30*time.Second"},
		"seconds as millis":        {Message{Queue: "q", DeliverAt: time.UnixMilli(1_800_000_000)}, "DeliverAt", "was 2027-01-15T08:00:00Z meant"},
		"millis as seconds":        {Message{Queue: "q", DeliverAt: time.Unix(1_800_000_000_000, 0)}, "DeliverAt", "was 2027-01-15T08:00:00Z meant"},
		"negative attempt":         {Message{Queue: "q", Attempt: -1}, "Attempt", "-1"},
		"negative version":         {Message{Queue: "q", Version: -1}, "Version", "-1"},
		"long id":                  {Message{Queue: "q", ID: long}, "ID", "256 bytes; AMQP allows 255"},
		"long queue":               {Message{Queue: long}, "Queue", "256 bytes"},
		"long routing key":         {Message{Exchange: "e", RoutingKey: long}, "RoutingKey", "256 bytes"},
		"long content type":        {Message{Queue: "q", ContentType: long}, "ContentType", "256 bytes"},
		"to direct reply-to":       {Message{Queue: "amq.rabbitmq.reply-to.g1h2"}, "Queue", "non-exclusive queue"},
		"direct reply-to":          {Message{Queue: "q", ReplyTo: "amq.rabbitmq.reply-to"}, "ReplyTo", "closes any other"},
		"large body":               {Message{Queue: "q", Body: make([]byte, defaultMaxBody+1)}, "Body", "expected at most 16777216"},
		"unsupported header type":  {Message{Queue: "q", Headers: amqp.Table{"a": struct{}{}}}, "Headers", "that AMQP tables support"},
		"long header name":         {Message{Queue: "q", Headers: amqp.Table{long: 1}}, "Headers", "256 bytes"},
		"nested long name":         {Message{Queue: "q", Headers: amqp.Table{"a": amqp.Table{long: 1}}}, "Headers", "256 bytes"},
		"NaN":                      {Message{Queue: "q", Headers: amqp.Table{"a": []any{amqp.Table{"b": math.NaN()}}}}, "Headers", "finite"},
		"infinite number":          {Message{Queue: "q", Headers: amqp.Table{"a": float32(math.Inf(-1))}}, "Headers", "finite"},
		"large header":             {Message{Queue: "q", Headers: amqp.Table{"a": bytes.Repeat([]byte("x"), header.MaxOfUser)}}, "Headers", "belongs in the body"},
		"recursive headers":        {Message{Queue: "q", Headers: itself()}, "Headers", "belongs in the body"},
		"large nested array":       {Message{Queue: "q", Headers: amqp.Table{"a": []any{strings.Repeat("x", header.MaxOfUser)}}}, "Headers", "belongs in the body"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := c.prepare(&tc.m, nil, time.Now())
			me, ok := errors.AsType[*MessageError](err)
			if !ok || me.Field != tc.field || !strings.Contains(me.Reason, tc.says) {
				t.Fatalf("prepare: got %v, want a MessageError about the field %s with %q", err, tc.field, tc.says)
			}
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("prepare: got %v, want ErrMessage", err)
			}
		})
	}
}

func TestPrepareRefusesImpossibleDelays(t *testing.T) {
	c := offline(t, nil)
	for _, m := range []Message{
		{Queue: "q", Delay: c.MaxDelay() + time.Millisecond},
		{Queue: "q", Delay: math.MaxInt64},
		{Queue: "q", DeliverAt: time.Now().AddDate(5000, 0, 0)},
		{Queue: "q", DeliverAt: time.Unix(math.MaxInt64, 0)}, // may be meant as "never", but it overflows and compares as earlier than any other time
		{Queue: "q", DeliverAt: time.Unix(math.MaxInt64-62135596800, 999)},
		{Queue: "q", DeliverAt: time.UnixMilli(math.MaxInt64)},
		{Queue: "q", DeliverAt: time.Date(292277026596, 12, 4, 15, 30, 7, 0, time.UTC)},
	} {
		if _, err := c.prepare(&m, nil, time.Now()); !errors.Is(err, topology.ErrDelay) {
			t.Errorf("prepare with the delay %v and the time %v: got %v, want a DelayError", m.Delay, m.DeliverAt, err)
		}
	}
}

func TestPrepareDefaultExchangeIsAQueue(t *testing.T) {
	p, err := offline(t, nil).prepare(&Message{RoutingKey: "orders"}, nil, time.Now())
	if err != nil || p.dest.Queue != "orders" {
		t.Fatalf("prepare with the default exchange: got %+v, %v, want the queue orders, because the default exchange routes by queue name", p, err)
	}
}

func TestPrepareStripsHeadersThatTheBrokerInterprets(t *testing.T) {
	m := Message{Queue: "q", Headers: amqp.Table{
		"x-death": []any{amqp.Table{"count": int64(1)}}, "x-first-death-queue": "a", "x-last-death-reason": "b",
		"CC": []any{"other"}, "BCC": []any{"other"}, "x-delay": 5, HeaderDue: int64(1), HeaderAttempt: int64(9),
		"trace": "kept", "x-mine": "kept",
	}}
	p, err := offline(t, nil).prepare(&m, nil, time.UnixMilli(1000))
	if err != nil {
		t.Fatal(err)
	}
	want := amqp.Table{"trace": "kept", "x-mine": "kept", HeaderDue: int64(1000)}
	if got := p.headers(nil); !maps.Equal(got, want) {
		t.Fatalf("the headers of the prepared message: got %v, want %v", got, want)
	}
	if len(m.Headers) != 10 {
		t.Errorf("after prepare, the caller's headers are %v, want them unchanged", m.Headers)
	}
}

// The due time in milliseconds is never before the requested time, and less than 1 ms after it. A message without a
// delay is due in the millisecond of the call.
func TestDueIsNeverEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "now_us"))
		delay := time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour)).Draw(t, "delay_ns"))
		due := dueAt(&Message{Delay: delay}, now)
		earliest := now.Add(delay)
		if delay == 0 {
			earliest = now.Truncate(time.Millisecond)
		}
		if at := time.UnixMilli(due); at.Before(earliest) || at.Sub(earliest) >= time.Millisecond {
			t.Fatalf("dueAt, now %v + %v: got %v, want it within 1 ms after %v", now, delay, at, earliest)
		}
		at := now.Add(delay)
		if got := time.UnixMilli(dueAt(&Message{DeliverAt: at}, now)); got.Before(at) || got.Sub(at) >= time.Millisecond {
			t.Fatalf("dueAt with DeliverAt %v: got %v, want the next whole millisecond", at, got)
		}
		if r := remaining(due, now); r < delay || r >= delay+2*time.Millisecond {
			t.Fatalf("remaining: got %v, want at least %v and less than %v", r, delay, delay+2*time.Millisecond)
		}
	})
}

func TestRemainingDoesNotOverflow(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	for due, want := range map[int64]time.Duration{
		0: 0, 1_000_000: 0, 1_000_001: time.Millisecond, math.MaxInt64: maxDelay,
	} {
		if got := remaining(due, now); got != want {
			t.Errorf("remaining(%d) = %v, want %v", due, got, want)
		}
	}
}

// If publishing is delayed by less than the slack, a message with a declared delay keeps that delay. After that, it
// gets its remaining delay, or the original one if the strategy does not support the remaining delay.
func TestRouteUsesTheRemainingDelay(t *testing.T) {
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	for _, age := range []time.Duration{0, 10 * time.Second} {
		for _, s := range []Strategy{nil, ttl} {
			c := offline(t, s)
			p, err := c.prepare(&Message{Queue: "q", Delay: time.Minute}, nil, time.Now().Add(-age))
			if err != nil {
				t.Fatal(err)
			}
			r, err := c.route(p, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			want := time.Minute
			if s == nil {
				want -= age
			}
			if r.Delay < want-time.Second || r.Delay > want+10*time.Millisecond {
				t.Errorf("strategy %s, routed %v after Send started: got the delay %v, want about %v", c.strategy.Name(), age, r.Delay, want)
			}
		}
	}
}

func FuzzPrepareHeaders(f *testing.F) {
	f.Add("x-death", "v", int64(1))
	f.Add("rabbitdelay-due", "", int64(-1))
	f.Add(strings.Repeat("k", 300), "v", int64(0))
	c := offline(f, nil)
	f.Fuzz(func(t *testing.T, name, value string, n int64) {
		m := Message{Queue: "q", Headers: amqp.Table{name: value, "n": n, "t": amqp.Table{name: n}, "l": []any{value, n}}}
		p, err := c.prepare(&m, nil, time.Now())
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("prepare: got %v, want ErrMessage", err)
			}
			return
		}
		headers := p.headers(nil)
		if due, ok := headers[HeaderDue].(int64); !ok || due <= 0 {
			t.Fatalf("the due header is %v, want a positive int64", headers[HeaderDue])
		}
	})
}

// Message ids are UUIDv7, because other programs may parse them.
func TestNewIDIsUUIDv7(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_123)
	seen := map[string]bool{}
	for range 1000 {
		id := newID(now)
		u, err := uuid.Parse(id)
		if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			t.Fatalf("id %s: got version %d, variant %v, error %v, want version 7 and uuid.RFC4122", id, u.Version(), u.Variant(), err)
		}
		sec, nsec := u.Time().UnixTime()
		if got := time.Unix(sec, nsec).UnixMilli(); got != now.UnixMilli() {
			t.Fatalf("id %s: got the time %d, want %d", id, got, now.UnixMilli())
		}
		if seen[id] {
			t.Fatalf("newID returned %s a second time, want unique ids", id)
		}
		seen[id] = true
	}
}

// itself returns a table that contains itself.
func itself() amqp.Table {
	t := amqp.Table{}
	t[""] = []any{t}
	return t
}

// A dead-letter queue is not declared again with the topology, so a dead letter that is returned once is given up.
func TestDeadLettersReturnIsFinal(t *testing.T) {
	c := offline(t, nil)
	p, err := c.prepare(&Message{Queue: "q"}, straightTo(topology.Destination{Queue: "q.dead"}), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, s := p.tries.Next(flow.Outcome{Kind: flow.Returned, Err: ErrUnroutable}); s.Do != flow.GiveUp {
		t.Errorf("a return of a dead letter: got %+v, want Do = flow.GiveUp", s)
	}
}

// If the wall clock is changed while a message waits to be written, its delay does not become shorter. An absolute time
// follows the wall clock.
func TestDelaysPassByTheMonotonicClock(t *testing.T) {
	ahead := time.Duration(0)
	c := &Client{cfg: Config{Now: func() time.Time { return time.Now().Add(ahead) }}, began: time.Now()}
	for from, want := range map[origin]time.Duration{fromCall: 0, fromWrite: 0, fromEpoch: time.Hour} {
		ahead = 0
		p := &prepared{timing: timing{from: from, start: c.cfg.Now(), up: time.Since(c.began)}}
		start := p.start
		ahead = time.Hour
		if got := c.begin(p).Sub(start).Truncate(time.Minute); got != want {
			t.Errorf("origin %d: after the clock was set ahead by 1h, the start is %v later, want %v", from, got, want)
		}
	}
}

// A delay of a whole number of milliseconds never gets a longer route, no matter at which fraction of a millisecond
// Send is called.
func TestFractionsOfAMillisecondKeepTheRoute(t *testing.T) {
	c := offline(t, nil)
	for _, delay := range []time.Duration{10 * time.Millisecond, time.Second, time.Hour} {
		for micros := range int64(1000) {
			p, err := c.prepare(&Message{Queue: "q", Delay: delay}, nil, time.UnixMicro(1e9+micros))
			if err != nil {
				t.Fatal(err)
			}
			if p.first.Delay != delay {
				t.Fatalf("Send %d µs after a full millisecond: got a route with the delay %v, want %v", micros, p.first.Delay, delay)
			}
		}
	}
}

// A message with a lead is delivered early by the lead or slightly more, if that saves hops. It never takes more hops
// than with exactly the requested lead.
func TestLeadSavesHops(t *testing.T) {
	const millis = int64(time.Millisecond)
	rapid.Check(t, func(t *rapid.T) {
		b, err := dlx.NewBucket(dlx.BucketConfig{
			Resolution: rapid.SampledFrom([]time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}).Draw(t, "resolution"),
		})
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{strategy: b}
		dest := topology.Destination{Queue: "q"}
		asked := time.Duration(rapid.Int64Range(0, topology.MaxLead.Milliseconds()).Draw(t, "lead_ms") * millis)
		delay := asked + time.Duration(rapid.Int64Range(1, (2*time.Hour).Milliseconds()).Draw(t, "delay_after_lead_ms")*millis)
		plain, err := b.Route(dest, delay-asked, 0)
		if err != nil {
			t.Fatal(err)
		}

		r, lead, err := c.ahead(dest, delay, asked, 0)
		if err != nil {
			t.Fatal(err)
		}
		if r.Hops > plain.Hops || r.Hops < 1 {
			t.Errorf("a delay of %v with a lead of %v: %d hops, want 1 to %d", delay, asked, r.Hops, plain.Hops)
		}
		if r.Delay > plain.Delay {
			t.Errorf("a delay of %v with a lead of %v: delivered after %v, want at most %v", delay, asked, r.Delay, plain.Delay)
		}
		if latest := min(asked+leadSlack, topology.MaxLead); lead < asked || lead > latest && lead > asked {
			t.Errorf("a delay of %v: the lead is %v, want %v to %v", delay, lead, asked, latest)
		}
		if lead > asked && r.Delay+lead != delay {
			t.Errorf("a delay of %v is delivered after %v with a lead of %v, want the sum to be the delay", delay, r.Delay, lead)
		}
		if asked == 0 && r.RoutingKey != plain.RoutingKey {
			t.Errorf("without a lead: got the routing key %s, want %s", r.RoutingKey, plain.RoutingKey)
		}
		whole := asked > 0 && asked <= topology.MaxLead-leadSlack && delay-asked > leadSlack && delay-asked < time.Minute
		if whole && r.Hops != 1 {
			t.Errorf("a delay of %v with a lead of %v: %d hops, want 1", delay, asked, r.Hops)
		}
	})
}

// If a message with a lead has waited in the client, its route covers only the rest of its delay. The lead is at least
// the configured one, unless the rest of the delay is too short for that.
func TestLeadAfterAWait(t *testing.T) {
	c := offline(t, nil)
	c.cfg.Lead = 400 * time.Millisecond
	for _, tc := range []struct{ delay, waited, routed, lead time.Duration }{
		{10 * time.Second, 0, 9 * time.Second, time.Second},
		{10 * time.Second, 3 * time.Second, 6 * time.Second, time.Second},
		{10 * time.Second, 9300 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond},
		{10 * time.Second, 9800 * time.Millisecond, 10 * time.Millisecond, 190 * time.Millisecond},
		{10 * time.Second, 11 * time.Second, 0, 0},
	} {
		start := time.UnixMilli(1e12)
		p, err := c.prepare(&Message{Queue: "q", DeliverAt: start.Add(tc.delay)}, nil, start)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.route(p, start.Add(tc.waited))
		if err != nil {
			t.Fatal(err)
		}
		if r.Delay != tc.routed || p.lead != tc.lead {
			t.Errorf("a message that is due after %v and has waited for %v: delivered after %v with a lead of %v, want %v and %v",
				tc.delay, tc.waited, r.Delay, p.lead, tc.routed, tc.lead)
		}
	}
}
