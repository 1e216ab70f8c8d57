package inspect

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// In a file, the value of a header keeps its AMQP type, because a consumer may depend on that type. Strings, booleans,
// null and arrays are written as in JSON, and a whole number is an int64. For all other types, the name of the type
// precedes the value, as in {"int32": 5}.

// savedHeaders is a header table that is an object in JSON.
type savedHeaders amqp.Table

// text is a string that is written to JSON as {"base64": ...} if it is not valid UTF-8.
type text string

// seconds is an AMQP timestamp. In JSON it is RFC 3339, or the seconds since the epoch if the year is outside the range
// of RFC 3339.
type seconds struct{ time.Time }

const encoded = "base64:" // precedes the name of a header that is not valid UTF-8

func (t text) MarshalJSON() ([]byte, error) { return marshal(savable(string(t))) }

func (t *text) UnmarshalJSON(data []byte) error {
	v, err := readValue(data)
	if err != nil {
		return err
	}
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("%s; expected a string", shorten(data))
	}
	*t = text(s)
	return nil
}

func (b base64String) MarshalJSON() ([]byte, error) {
	return marshal(base64.StdEncoding.EncodeToString(b))
}

func (b *base64String) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s; expected base64 in a string", shorten(data))
	}
	var err error
	if *b, err = base64.StdEncoding.DecodeString(s); err != nil {
		return fmt.Errorf("%s; expected base64: %w", shorten(data), err)
	}
	return nil
}

func (s seconds) MarshalJSON() ([]byte, error) {
	if year := s.UTC().Year(); year < 1 || year > 9999 {
		return strconv.AppendInt(nil, s.Unix(), 10), nil
	}
	return marshal(s.UTC().Format(time.RFC3339))
}

func (s *seconds) UnmarshalJSON(data []byte) error {
	var n int64
	if json.Unmarshal(data, &n) == nil {
		s.Time = time.Unix(n, 0)
		return nil
	}
	var at time.Time
	if err := json.Unmarshal(data, &at); err != nil {
		return fmt.Errorf("%s; expected a time such as 2026-12-24T08:00:00Z", shorten(data))
	}
	s.Time = time.Unix(at.Unix(), 0) // the form in which amqp091 returns a timestamp
	return nil
}

func (h savedHeaders) MarshalJSON() ([]byte, error) {
	out := make(map[string]any, len(h))
	for name, v := range h {
		if !utf8.ValidString(name) || strings.HasPrefix(name, encoded) {
			name = encoded + base64.StdEncoding.EncodeToString([]byte(name))
		}
		out[name] = savable(v)
	}
	return marshal(out)
}

func (h *savedHeaders) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return fmt.Errorf("%s; expected an object with headers", shorten(data))
	}
	*h = make(savedHeaders, len(fields))
	for name, raw := range fields {
		v, err := readValue(raw)
		if err != nil {
			return fmt.Errorf("header %q: %w", name, err)
		}
		if b64, ok := strings.CutPrefix(name, encoded); ok {
			b, err := base64.StdEncoding.DecodeString(b64)
			if err != nil {
				return fmt.Errorf("header %q: expected base64: %w", name, err)
			}
			name = string(b)
		}
		(*h)[name] = v
	}
	return nil
}

// exactInt is the largest whole number that all JSON parsers represent exactly.
const exactInt = 1 << 53

// savable returns the JSON form of a header's value.
func savable(v any) any {
	typed := func(name string, v any) any { return map[string]any{name: v} }
	switch v := v.(type) {
	case string:
		if !utf8.ValidString(v) {
			return typed("base64", base64String(v))
		}
	case int64:
		if v < -exactInt || v > exactInt {
			return typed("int64", strconv.FormatInt(v, 10))
		}
	case int8, int16, int32, uint8, uint16, uint32:
		return typed(fmt.Sprintf("%T", v), v)
	case float32:
		return typed("float32", savableFloat(float64(v), 32))
	case float64:
		return typed("float64", savableFloat(v, 64))
	case amqp.Decimal:
		return typed("decimal", []int64{int64(v.Scale), int64(v.Value)})
	case time.Time:
		return typed("time", seconds{v})
	case []byte:
		return typed("bytes", base64String(v))
	case amqp.Table:
		return typed("table", savedHeaders(v))
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = savable(e)
		}
		return out
	}
	return v // nil, bool and the other values that JSON represents directly
}

func savableFloat(f float64, bits int) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprint(f)
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, bits))
}

// readValue parses a value that savable has written.
func readValue(data []byte) (any, error) {
	switch data = bytes.TrimSpace(data); {
	case bytes.HasPrefix(data, []byte{'{'}):
		return readTyped(data)
	case bytes.HasPrefix(data, []byte{'['}):
		var list []json.RawMessage
		if err := json.Unmarshal(data, &list); err != nil {
			return nil, err
		}
		out := make([]any, len(list))
		for i, raw := range list {
			var err error
			if out[i], err = readValue(raw); err != nil {
				return nil, err
			}
		}
		return out, nil
	case bytes.ContainsAny(data[:1], "-0123456789"):
		n, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil {
			return nil, fmt.Errorf(`%s; expected a whole number, or a type such as {"float64": 1.5}`, shorten(data))
		}
		return n, nil
	}
	var v any
	err := json.Unmarshal(data, &v)
	return v, err
}

var errTyped = errors.New(`expected a type with its value, such as {"int32": 5}, {"time": "2026-12-24T08:00:00Z"}, {"bytes": "AQI="} or {"table": {"name": "value"}}`)

// readTyped parses {"type": value}.
func readTyped(data []byte) (any, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	if len(fields) != 1 {
		return nil, fmt.Errorf("%s; %w", shorten(data), errTyped)
	}
	for name, raw := range fields {
		if read := readers[name]; read != nil {
			v, err := read(raw)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			return v, err
		}
	}
	return nil, fmt.Errorf("%s; %w", shorten(data), errTyped)
}

// readers maps the name of a type to the function that parses its values.
var readers map[string]func(json.RawMessage) (any, error)

func init() { //nolint:gochecknoinits // the reader for tables uses readers, which would be an initialisation cycle
	readers = map[string]func(json.RawMessage) (any, error){
		"int8":    number(func(n int64) any { return int8(n) }, math.MinInt8, math.MaxInt8),
		"int16":   number(func(n int64) any { return int16(n) }, math.MinInt16, math.MaxInt16),
		"int32":   number(func(n int64) any { return int32(n) }, math.MinInt32, math.MaxInt32),
		"int64":   number(func(n int64) any { return n }, math.MinInt64, math.MaxInt64),
		"uint8":   number(func(n int64) any { return uint8(n) }, 0, math.MaxUint8),
		"uint16":  number(func(n int64) any { return uint16(n) }, 0, math.MaxUint16),
		"uint32":  number(func(n int64) any { return uint32(n) }, 0, math.MaxUint32),
		"float32": float(func(f float64) any { return float32(f) }, 32),
		"float64": float(func(f float64) any { return f }, 64),
		"decimal": readDecimal,
		"time":    unmarshaled(func(s seconds) any { return s.Time }),
		"bytes":   unmarshaled(func(b base64String) any { return []byte(b) }),
		"base64":  unmarshaled(func(b base64String) any { return string(b) }),
		"table":   unmarshaled(func(h savedHeaders) any { return amqp.Table(h) }),
	}
}

// unmarshaled returns a function that decodes a T with json.Unmarshal, and converts it with the function convert.
func unmarshaled[T any](convert func(T) any) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		var v T
		err := json.Unmarshal(raw, &v)
		return convert(v), err
	}
}

func number(as func(int64) any, least, most int64) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		n, err := strconv.ParseInt(unquoted(raw), 10, 64)
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("%s; expected a whole number from %d to %d", shorten(raw), least, most)
		}
		return as(n), nil
	}
}

func float(as func(float64) any, bits int) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		f, err := strconv.ParseFloat(unquoted(raw), bits)
		if err != nil {
			return nil, fmt.Errorf("%s; expected a %d-bit floating-point number", shorten(raw), bits)
		}
		return as(f), nil
	}
}

func readDecimal(raw json.RawMessage) (any, error) {
	var n []int64
	err := json.Unmarshal(raw, &n)
	if err != nil || len(n) != 2 || n[0] < 0 || n[0] > math.MaxUint8 || n[1] < math.MinInt32 || n[1] > math.MaxInt32 {
		return nil, fmt.Errorf("%s; expected scale and value, such as [2, 1999] for 19.99", shorten(raw))
	}
	return amqp.Decimal{Scale: uint8(n[0]), Value: int32(n[1])}, nil
}

func unquoted(raw json.RawMessage) string { return strings.Trim(string(raw), `"`) }

// shorten returns the beginning of invalid data, for an error message.
func shorten(data []byte) string {
	const most = 40
	if len(data) <= most {
		return string(data)
	}
	return strings.ToValidUTF8(string(data[:most]), "") + "…"
}
