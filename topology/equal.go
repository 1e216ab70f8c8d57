package topology

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Mismatch is one argument or property in which two descriptions of an object
// differ. Want and Have are nil where the argument is absent, or a Go value, or
// the broker's text of it.
type Mismatch struct {
	Argument string
	Want     any
	Have     any
}

func (m Mismatch) String() string {
	return fmt.Sprintf("%s: wanted %s, found %s", m.Argument, FormatValue(m.Want), FormatValue(m.Have))
}

// FormatValue writes an argument's value for people: nil as "none", text in
// quotes, tables and lists in YAML's flow form with sorted keys.
func FormatValue(v any) string {
	switch x := v.(type) {
	case nil:
		return "none"
	case string:
		return strconv.Quote(x)
	case []byte:
		return strconv.Quote(string(x))
	case time.Time:
		return x.UTC().Format(time.RFC3339)
	case []any:
		parts := make([]string, len(x))
		for i, e := range x {
			parts[i] = FormatValue(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if t, ok := table(v); ok {
		return formatTable(t)
	}
	if n, ok := integer(v); ok { // a float of JSON reads like the integer it equals
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprint(v)
}

// table is a value that is a table, whatever its type is called: a client of AMQP
// has one of its own.
func table(v any) (map[string]any, bool) {
	r, kind := reflect.ValueOf(v), reflect.TypeFor[map[string]any]()
	if r.Kind() != reflect.Map || !r.CanConvert(kind) {
		return nil, false
	}
	return reflect.TypeAssert[map[string]any](r.Convert(kind))
}

func formatTable(t map[string]any) string {
	parts := make([]string, 0, len(t))
	for _, k := range sortedKeys(t) {
		parts = append(parts, k+": "+FormatValue(t[k]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// sameValue compares argument values as the broker does: integers of any width
// are equal when their numbers are, and so is a float without a fraction, which
// is how JSON carries integers.
func sameValue(a, b any) bool {
	if x, ok := integer(a); ok {
		y, ok := integer(b)
		return ok && x == y
	}
	switch x := a.(type) {
	case float32, float64:
		y, ok := float(b)
		z, _ := float(a)
		return ok && y == z
	case string:
		return sameText([]byte(x), b)
	case []byte:
		return sameText(x, b)
	case time.Time:
		y, ok := b.(time.Time)
		return ok && x.Unix() == y.Unix()
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, sameValue)
	}
	if x, ok := table(a); ok {
		y, ok := table(b)
		return ok && len(diffTables(x, y)) == 0
	}
	return a == b
}

func sameText(a []byte, b any) bool {
	switch y := b.(type) {
	case string:
		return string(a) == y
	case []byte:
		return bytes.Equal(a, y)
	}
	return false
}

func integer(v any) (int64, bool) {
	switch x := v.(type) {
	case int:
		return int64(x), true
	case int8:
		return int64(x), true
	case int16:
		return int64(x), true
	case int32:
		return int64(x), true
	case int64:
		return x, true
	case uint8:
		return int64(x), true
	case uint16:
		return int64(x), true
	case uint32:
		return int64(x), true
	case float64:
		if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return int64(x), true
		}
	case float32:
		return integer(float64(x))
	}
	return 0, false
}

func float(v any) (float64, bool) {
	switch x := v.(type) {
	case float64:
		return x, true
	case float32:
		return float64(x), true
	}
	i, ok := integer(v)
	return float64(i), ok
}

// diffTables lists, in the order of their names, the arguments in which two
// tables differ.
func diffTables(want, have map[string]any) []Mismatch {
	var diffs []Mismatch
	names := sortedKeys(want)
	for k := range have {
		if _, ok := want[k]; !ok {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	for _, k := range names {
		w, inWant := want[k]
		h, inHave := have[k]
		if inWant != inHave || !sameValue(w, h) {
			diffs = append(diffs, Mismatch{Argument: k, Want: w, Have: h})
		}
	}
	return diffs
}

// diffProperty compares one property of an object.
func diffProperty(name string, want, have any) []Mismatch {
	if sameValue(want, have) {
		return nil
	}
	return []Mismatch{{Argument: name, Want: want, Have: have}}
}

// comparedQueueArguments are the arguments that a broker compares when a queue
// is declared again (those which its queue types know, up to 4.3). It accepts a
// difference in any other, and so does the plan.
var comparedQueueArguments = map[string]bool{
	ArgQueueType: true, ArgMessageTTL: true, ArgDeadLetterExchange: true, ArgDeadLetterRoutingKey: true,
	ArgDeadLetterStrategy: true, ArgOverflow: true, ArgMaxLength: true, ArgMaxLengthBytes: true,
	ArgDeliveryLimit: true, ArgSingleActiveConsumer: true, ArgExpires: true, ArgMaxPriority: true,
	"x-max-in-memory-length": true, "x-max-in-memory-bytes": true, "x-quorum-initial-group-size": true,
	"x-quorum-target-group-size": true, "x-queue-leader-locator": true, "x-queue-mode": true,
	"x-queue-version": true, "x-queue-master-locator": true,
}

// comparedExchangeArguments: a broker compares alternate-exchange only. The
// type inside an x-delayed-message exchange decides where messages go, so a
// difference there is a conflict as well; other exchanges may have it from producers
// that left the plugin, and take no notice of it.
func comparedExchangeArguments(kind string) map[string]bool {
	return map[string]bool{ArgAlternateExchange: true, ArgDelayedType: kind == kindDelayed}
}

func onlyCompared(diffs []Mismatch, compared map[string]bool) []Mismatch {
	return slices.DeleteFunc(diffs, func(m Mismatch) bool { return !compared[m.Argument] })
}

// diffExchange compares two descriptions of one exchange, all arguments included.
func diffExchange(want, have Exchange) []Mismatch {
	diffs := diffProperty("type", want.Kind, have.Kind)
	diffs = append(diffs, diffProperty("auto_delete", want.AutoDelete, have.AutoDelete)...)
	diffs = append(diffs, diffProperty("internal", want.Internal, have.Internal)...)
	return append(diffs, diffTables(want.Table(), have.Table())...)
}

// diffQueue compares two descriptions of one queue, all arguments included.
func diffQueue(want, have Queue) []Mismatch { return diffTables(want.Table(), have.Table()) }

// diffDestination compares two destinations of one name.
func diffDestination(want, have Destination) []Mismatch {
	diffs := diffProperty("queue", want.Queue, have.Queue)
	diffs = append(diffs, diffProperty("exchange", want.Exchange, have.Exchange)...)
	diffs = append(diffs, diffProperty("routing_key", want.RoutingKey, have.RoutingKey)...)
	diffs = append(diffs, diffProperty("dead_letter", want.DeadLetter, have.DeadLetter)...)
	var w, h any
	if want.Retry != nil {
		w = fmt.Sprintf("%+v", *want.Retry)
	}
	if have.Retry != nil {
		h = fmt.Sprintf("%+v", *have.Retry)
	}
	return append(diffs, diffProperty("retry", w, h)...)
}

// bindingKey identifies a binding: two bindings with one key are the same one
// to the broker.
func bindingKey(b Binding) string {
	kind, dest := "queue", b.Queue
	if b.ToExchange != "" {
		kind, dest = "exchange", b.ToExchange
	}
	return strings.Join([]string{b.Exchange, kind, dest, b.RoutingKey, formatTable(b.Arguments)}, "\x00")
}

// String describes the binding: source, destination, routing key, arguments.
func (b Binding) String() string {
	dest := "queue " + strconv.Quote(b.Queue)
	if b.ToExchange != "" {
		dest = "exchange " + strconv.Quote(b.ToExchange)
	}
	s := fmt.Sprintf("%q -> %s, routing key %q", b.Exchange, dest, b.RoutingKey)
	if len(b.Arguments) > 0 {
		s += ", arguments " + formatTable(b.Arguments)
	}
	return s
}
