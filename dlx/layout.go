package dlx

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Names of layouts.
const (
	// LayoutClock has positions that people know: parts of a second, seconds,
	// minutes, hours, days, and twelve "months" of 32 days. It reaches 384 days.
	LayoutClock = "clock"
	// LayoutHex has radix 16 and as many positions as 366 days need; the
	// highest position is no larger than needed.
	LayoutHex = "hex"
	// LayoutBinary has 28 positions of radix 2: the fewest queues, the most hops.
	LayoutBinary = "binary"
)

const (
	binaryPositions = 28
	hexReach        = 366 * day
	clockMonth      = 32 * day

	minResolution = 10 * time.Millisecond
	maxResolution = time.Hour
	maxPositions  = 28
	maxRadix      = 1000
	maxQueues     = 1000
)

// layout is the number system in which delays are written. The position 0 is
// the lowest.
type layout struct {
	tag        string // one topic word, different for layouts whose digits differ in meaning
	resolution time.Duration
	radices    []int64
	units      []int64 // what 1 at each position is worth, in resolutions
	max        int64   // the largest number
}

// defaultResolution is the one that does not show in a layout's tag. 10ms costs
// the clock no hop, only queues at its lowest position; at a fixed small radix it
// is one more digit, which means another hop for most messages.
func defaultResolution(name string) time.Duration {
	switch name {
	case LayoutClock:
		return 10 * time.Millisecond
	case LayoutBinary:
		return time.Second
	default: // hex and explicit radices
		return 100 * time.Millisecond
	}
}

// newLayout works out a layout of a known name, or of explicit radices where the
// name is empty. Its errors are *topology.FieldError.
func newLayout(name string, radices []int, resolution time.Duration) (layout, error) {
	if err := checkResolution(resolution); err != nil {
		return layout{}, err
	}
	l := layout{tag: name, resolution: resolution}
	switch name {
	case LayoutClock:
		rs, err := clockRadices(resolution)
		if err != nil {
			return layout{}, err
		}
		l.radices = rs
	case LayoutHex:
		l.radices = hexRadices(resolution)
	case LayoutBinary:
		for range binaryPositions {
			l.radices = append(l.radices, 2)
		}
	default:
		if err := checkRadices(radices); err != nil {
			return layout{}, err
		}
		var b strings.Builder
		for i, r := range radices {
			l.radices = append(l.radices, int64(r))
			if i > 0 {
				b.WriteByte('x')
			}
			b.WriteString(strconv.Itoa(r))
		}
		l.tag = "r" + b.String()
	}
	if resolution != defaultResolution(name) {
		l.tag += "-" + durationName(resolution)
	}
	if err := l.fill(name); err != nil {
		return layout{}, err
	}
	return l, nil
}

// fill computes what follows from the radices, and refuses a layout with a
// queue whose TTL no broker accepts. That bound also keeps all arithmetic on
// durations far from overflow.
func (l *layout) fill(name string) error {
	unit := int64(1)
	bound := int64(topology.MaxTTL / l.resolution)
	for i, r := range l.radices {
		if unit > bound/(r-1) {
			err := &topology.FieldError{Of: "bucket", Field: "Radices", Value: l.radices, Want: fmt.Sprintf(
				"such that no queue's TTL is over %s, RabbitMQ's bound; at the resolution %s position %d exceeds it", topology.FormatDuration(topology.MaxTTL), topology.FormatDuration(l.resolution), i)}
			if name != "" {
				err.Field, err.Value = "Resolution", l.resolution
				err.Want = fmt.Sprintf("finer with the %s layout, whose longest queue TTL would exceed %s, RabbitMQ's bound", name, topology.FormatDuration(topology.MaxTTL))
			}
			return err
		}
		l.units = append(l.units, unit)
		l.max += (r - 1) * unit
		unit *= r
	}
	return nil
}

// ttl is how long a message stays in the queue of digit v at position i.
func (l *layout) ttl(i int, v int64) time.Duration {
	return time.Duration(v*l.units[i]) * l.resolution
}

func checkResolution(r time.Duration) error {
	if r < minResolution || r > maxResolution || r%time.Millisecond != 0 {
		return &topology.FieldError{
			Of: "bucket", Field: "Resolution", Value: r,
			Want: "whole milliseconds from " + topology.FormatDuration(minResolution) + " to " + topology.FormatDuration(maxResolution),
		}
	}
	return nil
}

func checkRadices(radices []int) error {
	bad := func(want string) error {
		return &topology.FieldError{Of: "bucket", Field: "Radices", Value: radices, Want: want}
	}
	if len(radices) == 0 || len(radices) > maxPositions {
		return bad(fmt.Sprintf("1 to %d numbers, the lowest position first", maxPositions))
	}
	queues := 0
	for _, r := range radices {
		if r < 2 || r > maxRadix {
			return bad(fmt.Sprintf("numbers from 2 to %d", maxRadix))
		}
		queues += r - 1
	}
	if queues > maxQueues {
		return bad(fmt.Sprintf("such that at most %d queues are needed; these need %d", maxQueues, queues))
	}
	return nil
}

// clockRadices starts the clock at the position that the resolution divides:
// 10ms gives 100 hundredths in a second, 5s gives 12 parts of a minute.
func clockRadices(resolution time.Duration) ([]int64, error) {
	positions := []time.Duration{time.Second, time.Minute, time.Hour, day, clockMonth, 12 * clockMonth}
	var radices []int64
	below := resolution
	for _, p := range positions {
		if p <= resolution {
			continue
		}
		if p%below != 0 {
			return nil, &topology.FieldError{
				Of: "bucket", Field: "Resolution", Value: resolution,
				Want: fmt.Sprintf("a divisor of %s with the clock layout (below 1s a divisor of 1s, below 1m of 1m, below 1h of 1h)", topology.FormatDuration(p)),
			}
		}
		radices = append(radices, int64(p/below))
		below = p
	}
	return radices, nil
}

func hexRadices(resolution time.Duration) []int64 {
	var radices []int64
	unit := resolution
	for unit < hexReach {
		r := min(16, int64((hexReach+unit-1)/unit))
		radices = append(radices, r)
		unit *= time.Duration(r)
	}
	return radices
}
