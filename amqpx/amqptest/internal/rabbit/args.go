package rabbit

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// inequivalent returns RabbitMQ's error for a declaration that differs from the existing object. The parameters
// received and current are in RabbitMQ's wording.
func inequivalent(arg, of, received, current string) *Error {
	return precondition("inequivalent arg '%s' for %s: received %s but current is %s", arg, of, received, current)
}

// sameArgs compares the values that two argument tables have for the given keys. It returns RabbitMQ's error for the
// first key whose values differ.
func sameArgs(of string, have, want amqp.Table, keys []string) *Error {
	for _, k := range keys {
		h, hok := have[k]
		w, wok := want[k]
		if hok == wok && (!hok || sameValue(h, w)) {
			continue
		}
		if hok && wok && typeName(h) == typeName(w) {
			return inequivalent(k, of, fmt.Sprintf("'%v'", w), fmt.Sprintf("'%v'", h))
		}
		described := func(v any, ok bool) string {
			if !ok {
				return "none"
			}
			return fmt.Sprintf("the value '%v' of type '%s'", v, typeName(v))
		}
		return inequivalent(k, of, described(w, wok), described(h, hok))
	}
	return nil
}

// flag is a property that must be the same in every declaration.
type flag struct {
	arg        string
	have, want bool
}

func sameFlags(of string, flags ...flag) *Error {
	for _, f := range flags {
		if f.have != f.want {
			return inequivalent(f.arg, of, fmt.Sprintf("'%t'", f.want), fmt.Sprintf("'%t'", f.have))
		}
	}
	return nil
}

// typeNames maps the types of table values to RabbitMQ's names for them.
var typeNames = map[reflect.Type]string{
	reflect.TypeFor[string](): "longstr", reflect.TypeFor[[]byte](): "binary", reflect.TypeFor[bool](): "bool",
	reflect.TypeFor[int8](): "byte", reflect.TypeFor[uint8](): "unsignedbyte",
	reflect.TypeFor[int16](): "short", reflect.TypeFor[uint16](): "unsignedshort",
	reflect.TypeFor[int32](): "signedint", reflect.TypeFor[uint32](): "unsignedint",
	reflect.TypeFor[int64](): "long", reflect.TypeFor[int](): "long",
	reflect.TypeFor[float32](): "float", reflect.TypeFor[float64](): "double", reflect.TypeFor[amqp.Decimal](): "decimal",
	reflect.TypeFor[time.Time](): "timestamp", reflect.TypeFor[amqp.Table](): "table", reflect.TypeFor[[]any](): "array",
}

func typeName(v any) string { return cmp.Or(typeNames[reflect.TypeOf(v)], "void") }

// maxTTL is the broker's maximum for TTLs and expirations: ten years, in ms.
const maxTTL = 10 * 365 * 86400 * 1000

// arguments reads and checks the values of an argument table, and keeps the first error.
type arguments struct {
	table amqp.Table
	of    string // the object in error texts, such as "queue 'q' in vhost '/'"
	err   *Error
}

func (a *arguments) refusef(key, format string, args ...any) {
	if a.err == nil {
		a.err = precondition("invalid arg '%s' for %s: %s", key, a.of, fmt.Sprintf(format, args...))
	}
}

// number returns an integer argument. If the key is missing, it returns the parameter absent. A value outside the range
// from lo to hi is an error.
func (a *arguments) number(key string, lo, hi, absent int64) int64 {
	v, ok := a.table[key]
	if !ok {
		return absent
	}
	n, ok := integer(v)
	switch {
	case !ok:
		a.refusef(key, "\"expected integer, got %s\"", typeName(v))
	case n == 0 && lo == 1:
		a.refusef(key, "{value_zero,%d}", n)
	case n < lo:
		a.refusef(key, "{value_negative,%d}", n)
	case n > hi:
		a.refusef(key, "{value_too_large,%d}", n)
	}
	return n
}

// typed returns an argument of type T. It returns false if the key is missing, or if its value has another type, which
// is also an error.
func typed[T any](a *arguments, key string) (x T, ok bool) {
	v, set := a.table[key]
	if x, ok = v.(T); set && !ok {
		a.refusef(key, "{unacceptable_type,%s}", typeName(v))
	}
	return x, ok
}

// oneOf returns an argument that must be one of the allowed values. Any other value is refused with the given text, in
// which the word VALUE is replaced by the value.
func (a *arguments) oneOf(key, refusal string, allowed ...string) string {
	s, ok := typed[string](a, key)
	if !ok || slices.Contains(allowed, s) {
		return s
	}
	a.refusef(key, "%s", strings.ReplaceAll(refusal, "VALUE", s))
	return ""
}

// queueArg says which types of queues accept an argument, and how its value is checked.
type queueArg struct {
	key     string
	classic bool // classic queues accept the argument
	quorum  bool // quorum queues accept the argument
	check   func(a *arguments, key string)
}

// queueArgs returns the arguments that at least one queue type rejects in the given version, or whose values are
// checked.
func queueArgs(v Version) []queueArg {
	positive := func(a *arguments, key string) { a.number(key, 1, math.MaxInt64, 0) }
	natural := func(a *arguments, key string) { a.number(key, 0, math.MaxInt64, 0) }
	all := []queueArg{
		{"x-max-priority", true, false, nil},
		{"x-queue-mode", true, false, func(a *arguments, key string) {
			if !v.AtLeast(4, 3, 0) {
				a.oneOf(key, `"unsupported queue mode 'VALUE'"`, "default", "lazy")
			}
		}},
		{"x-queue-version", true, false, func(a *arguments, key string) {
			least := int64(1)
			if v.AtLeast(4, 3, 0) {
				least = 2
			}
			if n := a.number(key, 0, math.MaxInt64, 2); n < least || n > 2 {
				a.refusef(key, `"unsupported queue version '%d'"`, n)
			}
		}},
		{"x-queue-master-locator", true, false, nil},
		{"x-queue-leader-locator", v.AtLeast(3, 12, 0), true, func(a *arguments, key string) {
			a.oneOf(key, "invalid_queue_locator_arg", "client-local", "balanced", "random", "least-leaders")
		}},
		{"x-delivery-limit", false, true, nil},
		{"x-dead-letter-strategy", false, true, nil},
		{"x-quorum-initial-group-size", false, true, positive},
		{"x-max-in-memory-length", false, true, natural},
		{"x-max-in-memory-bytes", false, true, natural},
		{"x-max-age", false, false, nil},
		{"x-initial-cluster-size", false, false, nil},
		{"x-stream-max-segment-size-bytes", false, false, nil},
	}
	if v.AtLeast(4, 3, 0) {
		all = append(all, queueArg{"x-consumer-timeout", false, true, natural})
	}
	return all
}

// known rejects arguments that the queue type does not accept, and then invalid values.
func (a *arguments) known(quorum bool, v Version) {
	kind := "rabbit_classic_queue"
	if quorum {
		kind = "rabbit_quorum_queue"
	}
	all := queueArgs(v)
	for _, x := range all {
		if _, ok := a.table[x.key]; ok && a.err == nil && (quorum && !x.quorum || !quorum && !x.classic) {
			a.err = precondition("invalid arg '%s' for %s of queue type %s", x.key, a.of, kind)
		}
	}
	for _, x := range all {
		if _, ok := a.table[x.key]; ok && a.err == nil && x.check != nil {
			x.check(a, x.key)
		}
	}
}
