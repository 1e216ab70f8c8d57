package bridge

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Header is the header by which producers ask the plugin for a delay, in milliseconds.
const Header = "x-delay"

// MaxDelay is the plugin's longest delay. Plugin and bridge deliver a message that asks
// for more at once.
const MaxDelay = math.MaxUint32 * time.Millisecond

// ErrDelay is wrapped by the error of a header that the plugin would not have taken.
var ErrDelay = errors.New("invalid " + Header)

// Delay returns how long the plugin would delay a message with these headers. Integers
// and strings of digits are milliseconds; the fraction of a float is cut off. A value that
// is absent, 0, negative, of another type, or more than MaxDelay is no delay. A string
// that is no number is an error (ErrDelay); the plugin closes the producer's channel.
func Delay(headers amqp.Table) (time.Duration, error) {
	ms, err := milliseconds(headers[Header])
	if err != nil || ms <= 0 || ms > math.MaxUint32 {
		return 0, err
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// milliseconds returns a value of the header, MaxInt64 if it overflows.
func milliseconds(v any) (int64, error) {
	switch v := v.(type) {
	case int8:
		return int64(v), nil
	case uint8:
		return int64(v), nil
	case int16:
		return int64(v), nil
	case uint16:
		return int64(v), nil
	case int32:
		return int64(v), nil
	case uint32:
		return int64(v), nil
	case int64:
		return v, nil
	case int:
		return int64(v), nil
	case float32:
		return truncated(float64(v)), nil
	case float64:
		return truncated(v), nil
	case string:
		return parsed(v)
	case []byte:
		return parsed(string(v))
	}
	return 0, nil
}

func truncated(f float64) int64 {
	switch {
	case f > math.MaxUint32+1:
		return math.MaxInt64
	case f > 0:
		return int64(f)
	}
	return 0
}

func parsed(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%w: %q; expected milliseconds", ErrDelay, s)
	}
	return n, nil
}
