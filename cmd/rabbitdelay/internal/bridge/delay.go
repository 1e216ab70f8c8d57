package bridge

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Header is the name of the header in which producers give the plugin a delay in milliseconds.
const Header = "x-delay"

// MaxDelay is the plugin's maximum delay. The plugin and a bridge deliver a message with a longer delay immediately.
const MaxDelay = math.MaxUint32 * time.Millisecond

// ErrDelay is wrapped by the error for a header that the plugin would have refused.
var ErrDelay = errors.New("invalid " + Header)

// Delay returns how long the plugin would delay a message with these headers. Integers and strings of digits are
// milliseconds; the fraction of a float is truncated. If the value is absent, 0, negative, of another type, or more
// than MaxDelay, there is no delay. A string that is not a number is an error (ErrDelay); the plugin would close the
// producer's channel.
func Delay(headers amqp.Table) (time.Duration, error) {
	value := headers[Header]
	if text, ok := value.([]byte); ok {
		value = string(text)
	}
	ms := int64(0)
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		ms = v.Int()
	case v.CanUint():
		ms = int64(v.Uint())
	case v.CanFloat():
		if f := v.Float(); f > 0 && f < math.MaxUint32+1 { // excludes NaN and values that would overflow
			ms = int64(f)
		}
	case v.Kind() == reflect.String:
		var err error
		if ms, err = strconv.ParseInt(v.String(), 10, 64); err != nil && !errors.Is(err, strconv.ErrRange) {
			return 0, fmt.Errorf("%w: %q; expected milliseconds", ErrDelay, v.String())
		}
	}
	if ms <= 0 || ms > math.MaxUint32 {
		return 0, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}
