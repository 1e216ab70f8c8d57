package rabbit

import (
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// inequivalent returns RabbitMQ's refusal of a declaration that differs from the existing
// object; received and current are in its words.
func inequivalent(arg, of, received, current string) *Error {
	return precondition("inequivalent arg '%s' for %s: received %s but current is %s", arg, of, received, current)
}

// sameArgs compares the arguments that RabbitMQ compares.
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
		return inequivalent(k, of, described(w, wok), described(h, hok))
	}
	return nil
}

func sameFlag(arg, of string, have, want bool) *Error {
	if have == want {
		return nil
	}
	return inequivalent(arg, of, fmt.Sprintf("'%t'", want), fmt.Sprintf("'%t'", have))
}

func described(v any, ok bool) string {
	if !ok {
		return "none"
	}
	return fmt.Sprintf("the value '%v' of type '%s'", v, typeName(v))
}

// typeName returns RabbitMQ's word for the type of a value in a table.
func typeName(v any) string {
	switch v.(type) {
	case string:
		return "longstr"
	case bool:
		return "bool"
	case int8:
		return "byte"
	case uint8:
		return "unsignedbyte"
	case int16:
		return "short"
	case uint16:
		return "unsignedshort"
	case int32:
		return "signedint"
	case uint32:
		return "unsignedint"
	case int64, int:
		return "long"
	case float32:
		return "float"
	case float64:
		return "double"
	case amqp.Decimal:
		return "decimal"
	case time.Time:
		return "timestamp"
	case amqp.Table:
		return "table"
	case []any:
		return "array"
	case []byte:
		return "binary"
	}
	return "void"
}

// maxTTL is the broker's bound for TTLs and expirations: ten years, in ms.
const maxTTL = 10 * 365 * 86400 * 1000

// arguments reads the values of a table and keeps the first refusal.
type arguments struct {
	table amqp.Table
	of    string // "queue 'q' in vhost '/'"
	err   *Error
}

func (a *arguments) refusef(key, format string, args ...any) {
	if a.err == nil {
		a.err = precondition("invalid arg '%s' for %s: %s", key, a.of, fmt.Sprintf(format, args...))
	}
}

// number returns an integer from lo to hi, or absent if the key is missing.
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

func (a *arguments) text(key string) (s string, ok bool) {
	v, ok := a.table[key]
	if !ok {
		return "", false
	}
	s, ok = v.(string)
	if !ok {
		a.refusef(key, "{unacceptable_type,%s}", typeName(v))
	}
	return s, ok
}

// oneOf returns a value that must be one of the allowed words. wrong is the refusal of
// another one, with VALUE in its place.
func (a *arguments) oneOf(key, wrong string, allowed ...string) string {
	s, ok := a.text(key)
	if !ok || slices.Contains(allowed, s) {
		return s
	}
	a.refusef(key, "%s", strings.ReplaceAll(wrong, "VALUE", s))
	return ""
}

func (a *arguments) boolean(key string) bool {
	v, ok := a.table[key]
	if !ok {
		return false
	}
	b, ok := v.(bool)
	if !ok {
		a.refusef(key, "{unacceptable_type,%s}", typeName(v))
	}
	return b
}
