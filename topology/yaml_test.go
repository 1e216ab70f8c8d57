package topology_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

const wholeYAML = `
exchanges:
  - name: orders
    type: topic
    alternate_exchange: lost
  - {name: lost, type: fanout, internal: true, auto_delete: true}
  - name: later
    type: x-delayed-message
    arguments: {x-delayed-type: topic}
queues:
  - name: orders.expire
    type: quorum
    message_ttl: 7d
    overflow: reject-publish
    max_length: 1000
    max_length_bytes: 1_000_000
    delivery_limit: -1
    single_active_consumer: true
    dead_letter: {exchange: orders, routing_key: "", at_least_once: true}
    arguments: &args
      x-quorum-initial-group-size: 3
      own: {nested: [1, two, 3.5, true]}
  - name: plain
    dead_letter: {exchange: ""}
    arguments: *args
bindings:
  - {exchange: orders, queue: plain, routing_key: "order.#"}
  - {exchange: amq.topic, to_exchange: orders}
  - {exchange: orders, queue: implicit.dead}
  - {exchange: delay.parked, queue: plain}
destinations:
  - name: expire
    queue: implicit
    retry: {max_attempts: 5, immediate_retries: 2, backoff: 1s, max_backoff: 10m, multiplier: 2, jitter: 0.2}
  - {exchange: orders, routing_key: order.paid, name: paid}
`

func TestParseYAMLReadsEveryField(t *testing.T) {
	got, err := topology.ParseYAML([]byte(wholeYAML))
	if err != nil {
		t.Fatal(err)
	}
	args := map[string]any{
		"x-quorum-initial-group-size": int64(3),
		"own":                         map[string]any{"nested": []any{int64(1), "two", 3.5, true}},
	}
	want := topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: "orders", Kind: "topic", AlternateExchange: "lost"},
			{Name: "lost", Kind: "fanout", Internal: true, AutoDelete: true},
			{Name: "later", Kind: "x-delayed-message", Arguments: map[string]any{"x-delayed-type": "topic"}},
		},
		Queues: []topology.Queue{
			{
				Name: "orders.expire", Type: topology.Quorum, MessageTTL: new(7 * 24 * time.Hour), Overflow: "reject-publish",
				MaxLength: new(int64(1000)), MaxLengthBytes: new(int64(1_000_000)), DeliveryLimit: new(int64(-1)), SingleActiveConsumer: true,
				DeadLetter: &topology.DeadLetter{Exchange: "orders", RoutingKey: new(""), AtLeastOnce: true}, Arguments: args,
			},
			{Name: "plain", DeadLetter: &topology.DeadLetter{}, Arguments: args},
		},
		Bindings: []topology.Binding{
			{Exchange: "orders", Queue: "plain", RoutingKey: "order.#"},
			{Exchange: "amq.topic", ToExchange: "orders"},
			{Exchange: "orders", Queue: "implicit.dead"},
			{Exchange: "delay.parked", Queue: "plain"},
		},
		Destinations: []topology.Destination{
			{Name: "expire", Queue: "implicit", Retry: &topology.Retry{
				MaxAttempts: 5, ImmediateRetries: 2, Backoff: time.Second, MaxBackoff: 10 * time.Minute, Multiplier: 2,
				Jitter: 0.2,
			}},
			{Name: "paid", Exchange: "orders", RoutingKey: "order.paid"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ParseYAML:\ngot  %+v\nwant %+v", got, want)
	}
}

func TestParseYAMLOfNothing(t *testing.T) {
	for _, doc := range []string{"", "# only a comment\n", "---\n", "queues:\nbindings:\n", "{}"} {
		got, err := topology.ParseYAML([]byte(doc))
		if err != nil || !reflect.DeepEqual(got, topology.Topology{}) {
			t.Errorf("ParseYAML(%q): got %+v, %v, want an empty topology", doc, got, err)
		}
	}
}

// Each document contains one mistake, and one of the reported problems must have its line and path.
var mistakes = []struct {
	name, doc, line, path, message string
}{
	{"top-level key", "queues: []\nqueue: []\n", "2:1", "queue", `unknown key "queue"`},
	{"unknown field", "queues:\n  - name: a\n    ttl: 5s\n", "3:5", "queues[0].ttl", `unknown key "ttl"; expected one of arguments, dead_letter`},
	{"kind for type", "exchanges:\n  - {name: a, type: topic, kind: topic}\n", "2:28", "exchanges[0].kind", "unknown key"},
	{"repeated key", "queues:\n  - name: a\n    name: b\n", "3:5", "queues[0].name", "already occurs in line 2"},
	{"repeated section", "queues: []\nqueues: []\n", "2:1", "queues", "already occurs in line 1"},
	{"not a list", "queues: {name: a}\n", "1:9", "queues", "expected a list"},
	{"not a mapping", "queues:\n  - a\n", "2:5", "queues[0]", `expected a mapping with the keys`},
	{"top is a list", "- a\n", "1:1", "", "expected a mapping"},
	{"number for text", "queues:\n  - name: 12\n", "2:11", "queues[0].name", "expected text"},
	{"null for text", "queues:\n  - name:\n", "2:10", "queues[0].name", "got nothing"},
	{"text for a boolean", "exchanges:\n  - {name: a, type: topic, internal: 'yes'}\n", "2:38", "exchanges[0].internal", "expected true or false"},
	{"text for an integer", "queues:\n  - {name: a, max_length: many}\n", "2:27", "queues[0].max_length", "expected an integer"},
	{"float for an integer", "queues:\n  - {name: a, max_length: 1.5}\n", "2:27", "queues[0].max_length", "expected an integer"},
	{"65 bits", "queues:\n  - {name: a, max_length: 18446744073709551615}\n", "2:27", "queues[0].max_length", "64 bits"},
	{"33 bits", "destinations:\n  - {queue: a, retry: {max_attempts: 4294967301}}\n", "2:38", "destinations[0].retry.max_attempts", "4294967301"},
	{"duration without unit", "queues:\n  - {name: a, message_ttl: 60}\n", "2:28", "queues[0].message_ttl", "write 60ms or 60s"},
	{"duration of words", "queues:\n  - {name: a, message_ttl: soon}\n", "2:28", "queues[0].message_ttl", `got "soon"`},
	{"negative duration", "queues:\n  - {name: a, message_ttl: -5s}\n", "2:28", "queues[0].message_ttl", "got -5s"},
	{"duration past ten years", "queues:\n  - {name: a, message_ttl: 3651d}\n", "2:28", "queues[0].message_ttl", "too long"},
	{"duration below a millisecond", "queues:\n  - {name: a, message_ttl: 1500us}\n", "2:28", "queues[0].message_ttl", "whole milliseconds"},
	{"duration past 64 bits", "queues:\n  - {name: a, message_ttl: 200000d}\n", "2:28", "queues[0].message_ttl", "exceeds the longest possible duration"},
	{"queue twice", "queues:\n  - name: a\n  - name: a\n", "3:11", "queues[1].name", "is already defined in queues[0]"},
	{"exchange twice", "exchanges:\n  - {name: a, type: topic}\n  - {name: a, type: topic}\n", "3:12", "exchanges[1].name", "is already defined in exchanges[0]"},
	{
		"binding twice",
		"queues: [{name: a}]\nbindings:\n  - {exchange: amq.topic, queue: a}\n  - {exchange: amq.topic, queue: a, routing_key: ''}\n",
		"4:5", "bindings[1]", "is already defined in bindings[0]",
	},
	{
		"destination twice", "destinations:\n  - {name: a, queue: x}\n  - {name: a, queue: y}\n", "3:12",
		"destinations[1].name", "is already defined in destinations[0]",
	},
	{"one place twice", "destinations:\n  - {name: a, queue: x}\n  - {name: b, queue: x}\n", "3:5", "destinations[1]", "same queue"},
	{"no name", "queues:\n  - type: quorum\n", "2:5", "queues[0].name", "needs a name"},
	{"reserved name", "queues:\n  - name: amq.a\n", "2:11", "queues[0].name", "reserve"},
	{"name of 256 bytes", "queues:\n  - name: " + strings.Repeat("a", 256) + "\n", "2:11", "queues[0].name", "at most 255"},
	{"name with a line break", "queues:\n  - name: \"a\\nb\"\n", "2:11", "queues[0].name", "line break"},
	{
		"routing key of 256 bytes",
		"queues: [{name: a}]\nbindings:\n  - {exchange: amq.topic, queue: a, routing_key: " + strings.Repeat("k", 256) + "}\n",
		"3:50", "bindings[0].routing_key", "at most 255",
	},
	{"no exchange type", "exchanges:\n  - name: a\n", "2:5", "exchanges[0].type", "needs a type"},
	{"unknown exchange type", "exchanges:\n  - {name: a, type: topik}\n", "2:21", "exchanges[0].type", `unknown exchange type "topik"`},
	{"delayed without inner type", "exchanges:\n  - {name: a, type: x-delayed-message}\n", "2:5", "exchanges[0].arguments.x-delayed-type", "needs the exchange type"},
	{"unknown queue type", "queues:\n  - {name: a, type: stream}\n", "2:21", "queues[0].type", "expected quorum or classic"},
	{
		"dangling source", "queues: [{name: a}]\nbindings:\n  - {exchange: nowhere, queue: a}\n", "3:16",
		"bindings[0].exchange", `exchange "nowhere" is not declared`,
	},
	{"default exchange as source", "queues: [{name: a}]\nbindings:\n  - {exchange: '', queue: a}\n", "3:16", "bindings[0].exchange", "accepts no bindings"},
	{"dangling queue", "bindings:\n  - {exchange: amq.topic, queue: nowhere}\n", "2:34", "bindings[0].queue", `queue "nowhere" is not declared`},
	{"dangling exchange", "bindings:\n  - {exchange: amq.topic, to_exchange: nowhere}\n", "2:40", "bindings[0].to_exchange", `exchange "nowhere" is not declared`},
	{
		"dangling alternate exchange", "exchanges:\n  - {name: a, type: topic, alternate_exchange: nowhere}\n", "2:48",
		"exchanges[0].alternate_exchange", "not declared",
	},
	{
		"a circle of TTLs",
		"queues:\n  - name: a\n    message_ttl: 1s\n    dead_letter: {exchange: '', routing_key: b}\n" +
			"  - name: b\n    message_ttl: 1s\n    dead_letter: {exchange: '', routing_key: a}\n",
		"4:18", "queues[0].dead_letter", "messages would expire in a cycle (a -> b -> a), and brokers drop such messages",
	},
	{"a reserved destination", "destinations:\n  - queue: amq.foo\n", "2:12", "destinations[0].queue", "which brokers reserve"},
	{"dangling dead-letter exchange", "queues:\n  - name: a\n    dead_letter: {exchange: nowhere}\n", "3:29", "queues[0].dead_letter.exchange", "not declared"},
	{"dangling destination", "destinations:\n  - {exchange: nowhere, routing_key: k}\n", "2:16", "destinations[0].exchange", "not declared"},
	{"binding to two", "queues: [{name: a}]\nbindings:\n  - {exchange: amq.topic, queue: a, to_exchange: amq.direct}\n", "3:5", "bindings[0]", "leads either to"},
	{"binding to none", "bindings:\n  - {exchange: amq.topic}\n", "2:5", "bindings[0]", "needs a destination"},
	{
		"TTL said twice", "queues:\n  - name: a\n    message_ttl: 5s\n    arguments: {x-message-ttl: 6000}\n", "4:32",
		"queues[0].arguments.x-message-ttl", "set message_ttl instead",
	},
	{"type as argument", "queues:\n  - name: a\n    arguments: {x-queue-type: classic}\n", "3:31", "queues[0].arguments.x-queue-type", "set type instead"},
	{
		"at least once, classic",
		"queues:\n  - name: a\n    type: classic\n    overflow: reject-publish\n    dead_letter: {exchange: '', at_least_once: true}\n",
		"5:48", "queues[0].dead_letter.at_least_once", "only quorum queues",
	},
	{
		"at least once, drop-head", "queues:\n  - name: a\n    dead_letter: {exchange: '', at_least_once: true}\n",
		"3:48", "queues[0].dead_letter.at_least_once", "needs overflow: reject-publish",
	},
	{"dead letter without exchange", "queues:\n  - name: a\n    dead_letter: {routing_key: b}\n", "3:18", "queues[0].dead_letter", "needs the key exchange"},
	{
		"delay queue to itself",
		"queues:\n  - name: a\n    message_ttl: 1s\n    dead_letter: {exchange: '', routing_key: a}\n", "4:46",
		"queues[0].dead_letter.routing_key", "cycle",
	},
	{"delivery limit, classic", "queues:\n  - {name: a, type: classic, delivery_limit: 5}\n", "2:46", "queues[0].delivery_limit", "only quorum queues"},
	{"delivery limit", "queues:\n  - {name: a, delivery_limit: -2}\n", "2:31", "queues[0].delivery_limit", "expected -1 or more"},
	{"length", "queues:\n  - {name: a, max_length: -1}\n", "2:27", "queues[0].max_length", "expected 0 or more"},
	{"overflow", "queues:\n  - {name: a, overflow: drop-tail}\n", "2:25", "queues[0].overflow", "unknown overflow"},
	{"reject-publish-dlx on quorum", "queues:\n  - {name: a, overflow: reject-publish-dlx}\n", "2:25", "queues[0].overflow", "quorum queue treats"},
	{
		"expiring queue under the prefix", "queues:\n  - {name: delay.mine, arguments: {x-expires: 60000}}\n", "2:47",
		"queues[0].arguments.x-expires", "must not expire",
	},
	{
		"expiring delay queue",
		"queues:\n  - {name: a, message_ttl: 1s, dead_letter: {exchange: ''}, arguments: {x-expires: 60000}}\n",
		"2:84", "queues[0].arguments.x-expires", "must not expire",
	},
	{"expires of 0", "queues:\n  - {name: a, arguments: {x-expires: 0}}\n", "2:38", "queues[0].arguments.x-expires", "expected 1 to"},
	{"priorities on quorum", "queues:\n  - {name: a, arguments: {x-max-priority: 5}}\n", "2:43", "queues[0].arguments.x-max-priority", "quorum queues do not support"},
	{"too many priorities", "queues:\n  - {name: a, type: classic, arguments: {x-max-priority: 256}}\n", "2:58", "queues[0].arguments.x-max-priority", "0 to 255"},
	{"argument twice", "queues:\n  - name: a\n    arguments:\n      x: 1\n      x: 2\n", "5:7", "queues[0].arguments.x", "already occurs in line 4"},
	{"argument of null", "queues:\n  - {name: a, arguments: {x: ~}}\n", "2:30", "queues[0].arguments.x", "got nothing"},
	{"argument of infinity", "queues:\n  - {name: a, arguments: {x: .inf}}\n", "2:30", "queues[0].arguments.x", "finite"},
	{"arguments as a list", "queues:\n  - {name: a, arguments: [x]}\n", "2:26", "queues[0].arguments", "expected a mapping of argument names"},
	{"destination of nothing", "destinations:\n  - name: a\n", "2:5", "destinations[0]", "is empty"},
	{"destination of two", "destinations:\n  - {queue: a, exchange: amq.topic}\n", "2:5", "destinations[0]", "has both a queue and an exchange"},
	{"destination of a strategy", "destinations:\n  - {queue: delay.bucket.1s}\n", "2:5", "destinations[0]", "belongs to the delay strategies"},
	{"dead letter to itself", "destinations:\n  - {queue: a, dead_letter: a}\n", "2:29", "destinations[0].dead_letter", "delivered again forever"},
	{"attempts", "destinations:\n  - {queue: a, retry: {max_attempts: -1}}\n", "2:38", "destinations[0].retry.max_attempts", "expected 1 to 1000000, got -1"},
	{
		"immediate", "destinations:\n  - {queue: a, retry: {immediate_retries: 101}}\n", "2:43",
		"destinations[0].retry.immediate_retries", "expected 0 to 100, got 101",
	},
	{
		"backoff bounds", "destinations:\n  - {queue: a, retry: {backoff: 10s, max_backoff: 5s}}\n", "2:51",
		"destinations[0].retry.max_backoff", "expected 10s (Backoff) to 3650d, got 5s",
	},
	{"multiplier", "destinations:\n  - {queue: a, retry: {multiplier: 0.5}}\n", "2:36", "destinations[0].retry.multiplier", "expected 1 to 1000, got 0.5"},
	{"jitter", "destinations:\n  - {queue: a, retry: {jitter: 1.5}}\n", "2:32", "destinations[0].retry.jitter", "0 to 1"},
	{"merge key without a mapping", "queues:\n  - &a {name: a}\n  - <<: a\n", "3:9", "queues[1].<<", "expected an alias of a mapping"},
	{"merged twice", "queues:\n  - &a {name: a}\n  - <<: *a\n", "2:15", "queues[1].name", `queue "a" is already defined in queues[0]`},
	{"two documents", "queues: []\n---\nqueues: []\n", "2:1", "", "second document"},
	{"not YAML", "queues: [\n", "1:0", "", "not YAML"},
}

func TestParseYAMLReportsLineAndPath(t *testing.T) {
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			got, err := topology.ParseYAML([]byte(m.doc))
			var invalid *topology.ValidationError
			if !errors.As(err, &invalid) || !errors.Is(err, topology.ErrInvalid) {
				t.Fatalf("ParseYAML: got the error %v, want a *ValidationError", err)
			}
			if !reflect.DeepEqual(got, topology.Topology{}) {
				t.Errorf("ParseYAML: got the topology %+v, want an empty one for an invalid document", got)
			}
			found := []string{}
			for _, p := range invalid.Problems {
				where := fmt.Sprintf("%d:%d", p.Line, p.Column)
				if where == m.line && p.Path == m.path && strings.Contains(p.Message, m.message) {
					return
				}
				found = append(found, where+" "+p.String())
			}
			t.Errorf("ParseYAML: got the following problems, want one at %s with path %q and text %q:\n%s", m.line, m.path, m.message, strings.Join(found, "\n"))
		})
	}
}

func TestParseYAMLReportsEverythingAtOnceInOrder(t *testing.T) {
	_, err := topology.ParseYAML([]byte("destinations:\n  - {queue: a, retry: {jitter: 2}}\n" +
		"queues:\n  - {name: 5, colour: red}\n  - {type: stream}\nbindings:\n  - {exchange: x, queue: y}\n"))
	var invalid *topology.ValidationError
	if !errors.As(err, &invalid) {
		t.Fatalf("ParseYAML: got %v, want a *topology.ValidationError", err)
	}
	var paths []string
	for _, p := range invalid.Problems {
		paths = append(paths, fmt.Sprintf("%d %s", p.Line, p.Path))
	}
	want := []string{
		"2 destinations[0].retry.jitter", "4 queues[0].name", "4 queues[0].colour", "5 queues[1].name", "5 queues[1].type",
		"7 bindings[0].exchange", "7 bindings[0].queue",
	}
	if !reflect.DeepEqual(paths, want) {
		t.Errorf("the paths of the problems:\ngot  %q\nwant %q", paths, want)
	}
	if text := err.Error(); !strings.HasPrefix(text, "7 problems:\n  line 2, column 32: destinations[0].retry.jitter: expected 0 to 1, got 2\n") {
		t.Errorf("the error's text: got %q, want the prefix %q",
			text, "7 problems:\n  line 2, column 32: destinations[0].retry.jitter: expected 0 to 1, got 2\n")
	}
}

func TestAliasesAreBounded(t *testing.T) {
	var doc strings.Builder
	doc.WriteString("queues:\n  - name: a\n    arguments:\n      a0: &a0 [x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&doc, "      a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	_, err := topology.ParseYAML([]byte(doc.String()))
	if err == nil || !strings.Contains(err.Error(), "more than 100000 values") {
		t.Errorf(`ParseYAML of nested aliases: got %v, want an error with "more than 100000 values"`, err)
	}
}

// When ParseYAML stops at the limit of values, it does not report the rest of the document as missing.
func TestTooManyValuesAreOneProblem(t *testing.T) {
	_, err := topology.ParseYAML([]byte("destinations:\n" + strings.Repeat("  - {queue: q}\n", 60_000)))
	if want := "line 50001, column 13: more than 100000 values with all aliases written out; split the file"; err == nil || err.Error() != want {
		t.Errorf("ParseYAML of too many values: got %v, want %s", err, want)
	}
}

func TestValidateOfGoTopologyHasPathsWithoutLines(t *testing.T) {
	top := topology.Topology{
		Queues:   []topology.Queue{{Name: "a", MessageTTL: new(-time.Second), Arguments: map[string]any{"x": struct{}{}}}},
		Bindings: []topology.Binding{{Exchange: "elsewhere", Queue: "a", RoutingKey: "\xff"}},
	}
	err := top.Validate()
	var invalid *topology.ValidationError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 4 {
		t.Fatalf("Validate: got %v, want 4 problems", err)
	}
	for i, want := range []string{"queues[0].message_ttl", "queues[0].arguments.x", "bindings[0].exchange", "bindings[0].routing_key"} {
		if p := invalid.Problems[i]; p.Path != want || p.Line != 0 {
			t.Errorf("problem %d: got %+v, want path %s and no line", i, p, want)
		}
	}
	if err := top.Validate(topology.AllowUndeclared()); strings.Contains(err.Error(), "elsewhere") {
		t.Errorf(`AllowUndeclared: got %v, want no "elsewhere" in it`, err)
	}
}

func TestSharedObjectsAreValid(t *testing.T) {
	top := topology.DeliveryTopology("p")
	top.Destinations = []topology.Destination{{Queue: "a"}, {Exchange: "amq.fanout", RoutingKey: "k"}}
	top = top.WithDestinationQueues("p", topology.Classic)
	if err := top.Validate(topology.DelayPrefix("p")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"p.parked", "a", "a.dead", "p.route.amq.fanout:k"} {
		q, ok := top.Queue(name)
		if !ok {
			t.Errorf("Queue(%q): got false, want true", name)
		}
		if classic := q.Type == topology.Classic; classic != strings.HasPrefix(name, "a") {
			t.Errorf("queue %q: got type %q, want classic for a and a.dead and quorum for the others", name, q.Type)
		}
	}
	if again := top.WithDestinationQueues("p", topology.Quorum); !reflect.DeepEqual(again, top) {
		t.Errorf("WithDestinationQueues called a second time: got %+v, want the unchanged topology %+v", again, top)
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "1500ms": 1500 * time.Millisecond, "48h": 48 * time.Hour, "7d": 168 * time.Hour,
		"1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "-2d": -48 * time.Hour, "-1d1h": -25 * time.Hour, "1h30m": 90 * time.Minute,
		"2w": 14 * 24 * time.Hour, "1w1d1h": 193 * time.Hour, "0.5w": 84 * time.Hour, "-1w": -168 * time.Hour,
	} {
		if got, err := topology.ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v and no error", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "d", "5", "1h1d", "1d-1h", "--1d", "1dd", "NaNd", "Infd", "1e3d", "0x1pd", "106752d", "99999999999999d",
		"106751d24h", "+-1s", "w", "1d1w", "1w-1d", "15251w", "15250w7d", "1ww",
	} {
		if got, err := topology.ParseDuration(text); err == nil {
			t.Errorf("ParseDuration of %q: got %v, want an error", text, got)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Microsecond: "1.5ms", 100 * time.Millisecond: "100ms", time.Minute: "1m", 90 * time.Second: "1m30s",
		30 * time.Minute: "30m", time.Hour: "1h", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h1s", 10 * time.Hour: "10h", 20 * time.Minute: "20m",
		24 * time.Hour: "1d", 48*time.Hour + time.Minute: "2d1m", 384*24*time.Hour - 100*time.Millisecond: "383d23h59m59.9s",
		-36 * time.Hour: "-1d12h", math.MaxInt64: "106751d23h47m16.854775807s",
	} {
		if got := topology.FormatDuration(d); got != want {
			t.Errorf("FormatDuration(%v) = %s, want %s", d, got, want)
		}
	}
}

// ParseDuration returns the duration that FormatDuration formatted.
func FuzzFormatDuration(f *testing.F) {
	f.Add(int64(384*24*time.Hour - 100*time.Millisecond))
	f.Add(int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n)
		if back, err := topology.ParseDuration(topology.FormatDuration(d)); err != nil || back != max(d, -math.MaxInt64) {
			t.Errorf("ParseDuration of %d, formatted as %s: got %d, %v, want %d and no error", d, topology.FormatDuration(d), back, err, max(d, -math.MaxInt64))
		}
	})
}

// For any input, ParseYAML returns either a valid topology or problems that each have a message.
func FuzzParseYAML(f *testing.F) {
	f.Add([]byte(wholeYAML))
	for _, m := range mistakes {
		f.Add([]byte(m.doc))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		top, err := topology.ParseYAML(data)
		if err == nil {
			if err := top.Validate(); err != nil {
				t.Fatalf("Validate of the parsed topology: got %v, want no error", err)
			}
			if _, err := top.Merge(top); err != nil {
				t.Fatalf("Merge of the topology with itself: got %v, want no error", err)
			}
			return
		}
		var invalid *topology.ValidationError
		if !errors.As(err, &invalid) || len(invalid.Problems) == 0 || err.Error() == "" {
			t.Fatalf("ParseYAML: got %#v, want a *ValidationError with problems", err)
		}
		for _, p := range invalid.Problems {
			if p.Message == "" || p.Line < 0 {
				t.Fatalf("ParseYAML: got the problem %+v, want a message and a line of at least 0", p)
			}
		}
	})
}
