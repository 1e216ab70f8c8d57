// Package asjson defines the JSON of tasks, messages, recurring tasks and traces, both for the commands' --json and for
// the HTTP API. Times are in RFC 3339 format in UTC with milliseconds, and durations look like 90s, 30m or 7d. A list
// is empty if it was read and contains nothing, and null only if it could not be read. The package does no I/O. To
// decode the bodies of messages, handlers use amqpx.JSON instead.
//
// task.go defines tasks and recurring tasks, message.go defines messages and traces, and value.go formats the values in
// them.
package asjson

import (
	"encoding/base64"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Instant returns shown.Instant, or an empty string for the zero time.
func Instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return shown.Instant(t)
}

// Duration returns topology.FormatDuration, or an empty string for 0.
func Duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return topology.FormatDuration(d)
}

// Text returns a UTF-8 body as plain, and any other body as binary in base64 (RFC 4648, with padding).
func Text(body []byte) (plain, binary string) {
	if utf8.Valid(body) {
		return string(body), ""
	}
	return "", base64.StdEncoding.EncodeToString(body)
}

// value converts numbers that JSON cannot represent, such as NaN, to strings with their names.
func value(v any) any {
	switch v := v.(type) {
	case float32:
		return value(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case amqp.Table:
		return values(v)
	case map[string]any:
		return values(v)
	case []any:
		return listOf(v, value)
	}
	return v
}

func values(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for name, v := range m {
		out[name] = value(v)
	}
	return out
}

// listOf converts each element of a list. The result is never nil.
func listOf[T, U any](list []T, convert func(T) U) []U {
	out := make([]U, 0, len(list))
	for _, v := range list {
		out = append(out, convert(v))
	}
	return out
}
