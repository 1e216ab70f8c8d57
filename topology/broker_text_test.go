package topology

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

// The texts are what RabbitMQ 3.10, 4.0 and 4.3 answer.
func TestInequivalentArgumentsAreRead(t *testing.T) {
	wanted := amqp.Table{ArgMessageTTL: int64(61000), ArgQueueType: "quorum", ArgDeadLetterExchange: "it's 'x'", ArgSingleActiveConsumer: true}
	for text, want := range map[string]string{
		"inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '61000' but current is '60000'":                                           "x-message-ttl: wanted 61000, found 60000",
		"inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '61000' of type 'long' but current is none":                     "x-message-ttl: wanted 61000, found none",
		"inequivalent arg 'x-overflow' for queue 'q' in vhost '/': received none but current is the value 'drop-head' of type 'longstr'":                 `x-overflow: wanted none, found "drop-head"`,
		"inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received none but current is the value '5' of type 'long'":                          "x-max-length: wanted none, found 5",
		"inequivalent arg 'x-queue-type' for queue 'p.plain' in vhost '/': received 'quorum' but current is 'classic'":                                   `x-queue-type: wanted "quorum", found "classic"`,
		"inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of type 'longstr' but current is none":                  `x-queue-type: wanted "quorum", found none`,
		"inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'":                                                  "durable: wanted true, found false",
		"inequivalent arg 'type' for exchange 'e' in vhost '/': received 'direct' but current is 'topic'":                                                `type: wanted "direct", found "topic"`,
		"inequivalent arg 'x-dead-letter-exchange' for queue 'p.it's' in vhost '/': received the value 'it's 'x'' of type 'longstr' but current is none": `x-dead-letter-exchange: wanted "it's 'x'", found none`,
		"inequivalent arg 'x-dead-letter-exchange' for queue '" + strings.Repeat("n", 180):                                                               `x-dead-letter-exchange: wanted "it's 'x'", found another value`,
		"inequivalent arg 'x-single-active-consumer' for queue 'q' in vhost '/': received the value 'true' of type 'bool' but current is none":           "x-single-active-consumer: wanted true, found none",
		"inequivalent arg 'x-message-ttl' for queue ' but current is ' in vhost '/': received the value '61000' of type 'long' but current is none":      "x-message-ttl: wanted 61000, found none",
	} {
		err := fmt.Errorf("wrapped: %w", &amqp.Error{Code: amqp.PreconditionFailed, Reason: "PRECONDITION_FAILED - " + text})
		m, ok := parseInequivalent(err, wanted)
		if !ok || m.String() != want {
			t.Errorf("%s\ngot  %s, %v\nwant %s", text, m, ok, want)
		}
	}
	for _, err := range []error{
		nil, errors.New("inequivalent arg 'a' for queue 'q'"),
		&amqp.Error{Code: amqp.NotFound, Reason: "inequivalent arg 'a' for queue 'q'"},
		&amqp.Error{Code: amqp.PreconditionFailed, Reason: "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"},
	} {
		if m, ok := parseInequivalent(err, wanted); ok {
			t.Errorf("%v was read as %s", err, m)
		}
	}
}

func FuzzInequivalent(f *testing.F) {
	f.Add("inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '61000' but current is '60000'")
	f.Add("inequivalent arg '")
	f.Fuzz(func(t *testing.T, reason string) {
		m, ok := parseInequivalent(&amqp.Error{Code: amqp.PreconditionFailed, Reason: reason}, amqp.Table{ArgMessageTTL: 1})
		if ok && (m.Argument == "" || m.String() == "") {
			t.Errorf("%q was read as %+v", reason, m)
		}
	})
}

func TestValuesCompareAsTheBrokerDoes(t *testing.T) {
	now := time.Now()
	same := [][2]any{
		{int32(5), int64(5)},
		{5, 5.0},
		{uint8(5), int16(5)},
		{"a", []byte("a")},
		{1.5, float32(1.5)},
		{nil, nil},
		{true, true},
		{now, now.Truncate(time.Second)},
		{[]any{1, "a"}, []any{int64(1), "a"}},
		{amqp.Table{"a": 1}, map[string]any{"a": 1.0}},
	}
	for _, p := range same {
		if !sameValue(p[0], p[1]) || !sameValue(p[1], p[0]) {
			t.Errorf("%#v and %#v differ", p[0], p[1])
		}
	}
	different := [][2]any{
		{5, 6}, {5, "5"}, {5, 5.5},
		{"a", "b"},
		{true, "true"},
		{1, true},
		{nil, 0},
		{nil, ""},
		{[]any{1}, []any{1, 2}},
		{amqp.Table{"a": 1}, amqp.Table{"a": 2}},
		{amqp.Table{"a": nil}, amqp.Table{"b": nil}},
		{amqp.Table{}, nil},
	}
	for _, p := range different {
		if sameValue(p[0], p[1]) || sameValue(p[1], p[0]) {
			t.Errorf("%#v and %#v are the same", p[0], p[1])
		}
	}
}

func arguments() *rapid.Generator[amqp.Table] {
	value := rapid.OneOf(
		rapid.Map(rapid.Int64(), func(i int64) any { return i }),
		rapid.Map(rapid.String(), func(s string) any { return s }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.SliceOfN(rapid.Int32(), 0, 3), func(l []int32) any {
			out := make([]any, len(l))
			for i := range l {
				out[i] = l[i]
			}
			return out
		}),
	)
	return rapid.Map(rapid.MapOfN(rapid.StringN(1, 5, -1), value, 0, 4), func(m map[string]any) amqp.Table { return m })
}

func topologies() *rapid.Generator[Topology] {
	return rapid.Custom(func(t *rapid.T) Topology {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		var top Topology
		for range rapid.IntRange(0, 4).Draw(t, "exchanges") {
			top.Exchanges = append(top.Exchanges, Exchange{Name: name.Draw(t, "name"), Kind: "topic"})
		}
		for range rapid.IntRange(0, 4).Draw(t, "queues") {
			n := name.Draw(t, "name") // one description per name, so that no two contradict
			ttl := time.Duration(n[0]) * time.Second
			top.Queues = append(top.Queues, Queue{Name: n, MessageTTL: &ttl})
		}
		for range rapid.IntRange(0, 4).Draw(t, "bindings") {
			top.Bindings = append(top.Bindings, Binding{Exchange: name.Draw(t, "source"), Queue: name.Draw(t, "queue"), Arguments: arguments().Draw(t, "arguments")})
		}
		return top
	})
}

// Merging is idempotent and associative, and the order of the operands decides
// only the order of the objects.
func TestMergeLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := topologies().Draw(t, "a"), topologies().Draw(t, "b"), topologies().Draw(t, "c")
		merge := func(x Topology, more ...Topology) Topology {
			out, err := x.Merge(more...)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		text := func(x Topology) string { return fmt.Sprintf("%v %v %v", x.Exchanges, len(x.Queues), x.Bindings) }
		ab := merge(a, b)
		if text(merge(ab, a, b)) != text(ab) {
			t.Fatal("not idempotent")
		}
		if text(merge(ab, c)) != text(merge(a, merge(b, c))) {
			t.Fatal("not associative")
		}
		ba := merge(b, a)
		if len(ba.Exchanges) != len(ab.Exchanges) || len(ba.Queues) != len(ab.Queues) || len(ba.Bindings) != len(ab.Bindings) {
			t.Fatal("the operands' order decides what is in it")
		}
	})
}

// blockedConn opens no channel until it is released.
type blockedConn struct{ release chan struct{} }

func (c blockedConn) Channel() (*amqp.Channel, error) {
	<-c.release
	return nil, amqp.ErrClosed
}

func TestApplyAndDestroyEndWithTheContext(t *testing.T) {
	top := Delivery("p")
	for name, run := range map[string]func(context.Context, Conn) (Report, error){
		"apply": func(ctx context.Context, c Conn) (Report, error) { return Apply(ctx, c, top, ApplyOptions{}) },
		"destroy": func(ctx context.Context, c Conn) (Report, error) {
			return Destroy(ctx, c, top, DestroyOptions{})
		},
	} {
		conn := blockedConn{make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := run(ctx, conn)
		cancel()
		close(conn.release)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type deadConn struct{}

func (deadConn) Channel() (*amqp.Channel, error) { return nil, amqp.ErrClosed }

func TestApplyOnADeadConnectionTriesNothing(t *testing.T) {
	top := Delivery("p")
	report, err := Apply(t.Context(), deadConn{}, top, ApplyOptions{})
	if !errors.Is(err, amqp.ErrClosed) || report.Count(Unknown) != 2 || report.Count(Untried) != 2 {
		t.Errorf("got %s, %v", report, err)
	}
	if _, err := Apply(t.Context(), deadConn{}, Topology{Queues: []Queue{{Name: "amq.q"}}}, ApplyOptions{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an invalid topology gave %v", err)
	}
}

type fixedInspector struct {
	live Live
	err  error
}

func (i fixedInspector) Inspect(context.Context, Topology) (Live, error) { return i.live, i.err }

// With an inspector, what is wrong is said before anything is touched.
func TestApplyAsksTheInspectorFirst(t *testing.T) {
	minute := time.Minute
	top := Topology{Queues: []Queue{{Name: "q", MessageTTL: &minute, DeadLetter: &DeadLetter{}}}}
	broken := errors.New("no answer")
	for name, c := range map[string]struct {
		insp fixedInspector
		want error
	}{
		"error":    {fixedInspector{err: broken}, broken},
		"conflict": {fixedInspector{live: Live{Queues: map[string]LiveQueue{"q": {Mismatches: []Mismatch{{Argument: "x"}}}}}}, ErrConflict},
		"policy": {fixedInspector{live: Live{Policies: []Policy{
			{Name: "p", Pattern: "q", ApplyTo: "all", Definition: map[string]any{"expires": 1}},
		}}}, ErrPolicy},
	} {
		report, err := Apply(t.Context(), deadConn{}, top, ApplyOptions{Inspector: c.insp})
		if !errors.Is(err, c.want) || report.Count(Untried) != 1 {
			t.Errorf("%s: %s, %v", name, report, err)
		}
	}
}

func TestWhichRefusalsMayPass(t *testing.T) {
	a := &applier{names: map[string]bool{"x": true, "q": true}}
	binding := declaration{kind: KindBinding, needs: []string{"x", "q"}}
	for name, c := range map[string]struct {
		object declaration
		err    error
		want   bool
	}{
		"queue being made":       {binding, &amqp.Error{Code: amqp.NotFound}, true},
		"stranger missing":       {declaration{kind: KindBinding, needs: []string{"x", "stranger"}}, &amqp.Error{Code: amqp.NotFound}, false},
		"conflict":               {declaration{kind: KindQueue}, &amqp.Error{Code: amqp.PreconditionFailed, Reason: "inequivalent arg 'timeout' for queue 'timeout' in"}, false},
		"metadata store is slow": {declaration{kind: KindQueue}, &amqp.Error{Code: amqp.PreconditionFailed, Reason: "operation timed out"}, true},
		"no permission":          {declaration{kind: KindQueue}, &amqp.Error{Code: amqp.AccessRefused}, false},
		"network":                {declaration{kind: KindQueue}, errors.New("reset"), false},
	} {
		if got := a.mayPass(c.object, c.err); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestARefusalTellsMoreThanALostConnection(t *testing.T) {
	lost := &amqp.Error{Code: amqp.ChannelError, Reason: "expected 'channel.open'"}
	refused := &amqp.Error{Code: amqp.PreconditionFailed}
	for want, errs := range map[error][]error{
		nil:     {nil, nil},
		lost:    {nil, lost, errors.New("reset")},
		refused: {lost, nil, refused, lost},
	} {
		if got := telling(errs); !errors.Is(got, want) {
			t.Errorf("%v: got %v, want %v", errs, got, want)
		}
	}
}
