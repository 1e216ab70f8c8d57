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

// Header is the header by which producers ask the plugin for a delay, in milliseconds.
const Header = "x-delay"

// MaxDelay is the plugin's longest delay. Plugin and bridge deliver a message that asks for more at once.
const MaxDelay = math.MaxUint32 * time.Millisecond

// ErrDelay is wrapped by the error of a header that the plugin would not have taken.
var ErrDelay = errors.New("invalid " + Header)

// Delay returns how long the plugin would delay a message with these headers. Integers and strings of digits are
// milliseconds; the fraction of a float is cut off. A value that is absent, 0, negative, of another type, or more
// than MaxDelay is no delay. A string that is no number is an error (ErrDelay); the plugin closes the producer's
// channel.
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
		if f := v.Float(); f > 0 && f < math.MaxUint32+1 { // not NaN, nor what overflows
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
