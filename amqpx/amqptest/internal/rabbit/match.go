package rabbit

import (
	"reflect"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// words splits a routing key as RabbitMQ does: an empty key has no words, and
// any other has one more than dots.
func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

// matchWords reports whether a topic binding matches a routing key: "*" is one word, "#"
// any number of words. It backtracks to the last "#" only, so its time is at most the
// product of both lengths.
func matchWords(p, k []string) bool {
	var i, j int
	hash, from := -1, 0
	for j < len(k) {
		switch {
		case i < len(p) && p[i] == "#":
			hash, from = i, j
			i++
		case i < len(p) && (p[i] == "*" || p[i] == k[j]):
			i, j = i+1, j+1
		case hash >= 0:
			from++
			i, j = hash+1, from
		default:
			return false
		}
	}
	for i < len(p) && p[i] == "#" {
		i++
	}
	return i == len(p)
}

// matchHeaders reports whether the headers of a message satisfy the arguments of a
// binding to a headers exchange. Arguments that begin with "x-" count with
// all-with-x and any-with-x only.
func matchHeaders(args, headers amqp.Table) bool {
	mode, _ := args["x-match"].(string)
	withX := strings.HasSuffix(mode, "-with-x")
	some := strings.HasPrefix(mode, "any")
	matched := 0
	for name, want := range args {
		if name == "x-match" || !withX && strings.HasPrefix(name, "x-") {
			continue
		}
		have, ok := headers[name]
		ok = ok && (want == nil || sameValue(want, have))
		if ok && some {
			return true
		}
		if !ok && !some {
			return false
		}
		if ok {
			matched++
		}
	}
	return !some || matched > 0
}

// sameValue compares values of a table as RabbitMQ does: numbers by value,
// whatever their width.
func sameValue(a, b any) bool {
	if x, ok := integer(a); ok {
		y, ok := integer(b)
		return ok && x == y
	}
	if x, ok := a.([]byte); ok {
		a = string(x)
	}
	if y, ok := b.([]byte); ok {
		b = string(y)
	}
	return reflect.DeepEqual(a, b)
}

// integer reads a whole number of any width.
func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	case int16:
		return int64(n), true
	case uint16:
		return int64(n), true
	case int32:
		return int64(n), true
	case uint32:
		return int64(n), true
	case int64:
		return n, true
	case int:
		return int64(n), true
	}
	return 0, false
}
