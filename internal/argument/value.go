package argument

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Format formats an argument's value for display: nil as "none", strings in quotes, and tables and lists in YAML's flow
// style with sorted keys.
func Format(v any) string {
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
			parts[i] = Format(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if t, ok := AsTable(v); ok {
		parts := make([]string, 0, len(t))
		for _, k := range slices.Sorted(maps.Keys(t)) {
			parts = append(parts, k+": "+Format(t[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	if n, ok := Integer(v); ok { // a whole float from JSON is formatted like an integer
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprint(v)
}

// AsTable returns a value as a table. It accepts any map type with the same underlying type, because an AMQP client
// has its own table type.
func AsTable(v any) (map[string]any, bool) {
	r, kind := reflect.ValueOf(v), reflect.TypeFor[map[string]any]()
	if r.Kind() != reflect.Map || !r.CanConvert(kind) {
		return nil, false
	}
	return reflect.TypeAssert[map[string]any](r.Convert(kind))
}

// Equal compares argument values as the broker does. Integers of any width are equal if they have the same value. A
// float without a fraction counts as an integer, because JSON decodes integers as floats.
func Equal(a, b any) bool {
	if x, ok := Integer(a); ok {
		y, ok := Integer(b)
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
		return ok && slices.EqualFunc(x, y, Equal)
	}
	if x, ok := AsTable(a); ok {
		y, ok := AsTable(b)
		return ok && maps.EqualFunc(x, y, Equal)
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

// Integer returns the value of an argument that is an integer of any width, or a float without a fraction. The second
// result is false for any other value.
func Integer(v any) (int64, bool) {
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
		return Integer(float64(x))
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
	i, ok := Integer(v)
	return float64(i), ok
}
