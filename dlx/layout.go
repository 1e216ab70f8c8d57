package dlx

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Names of layouts.
const (
	// LayoutClock has positions like a clock and a calendar: parts of a second, seconds, minutes, hours, days, and
	// twelve "months" of 32 days. It reaches 384 days.
	LayoutClock = "clock"
	// LayoutHex has radix 16 and as many positions as 366 days need. The radix of the highest position is no larger
	// than needed.
	LayoutHex = "hex"
	// LayoutBinary has 28 positions of radix 2. It needs the fewest queues and the most hops.
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

// layout is the number system in which delays are written. Position 0 is the lowest.
type layout struct {
	tag        string // one topic word; layouts whose digits have different meanings have different tags
	resolution time.Duration
	radices    []int64
	units      []int64 // the value of a 1 at each position, in resolutions
	max        int64   // the largest number that the digits can express, in resolutions
}

// defaultResolution returns the resolution that a layout has if its tag does not name one. With the clock layout, 10ms
// costs no extra hop, only more queues at the lowest position. With a small fixed radix, 10ms would need one more
// digit, and therefore one more hop for most messages.
func defaultResolution(name string) time.Duration {
	switch name {
	case LayoutClock:
		return 10 * time.Millisecond
	case LayoutBinary:
		return time.Second
	default: // hex, or explicit radices
		return 100 * time.Millisecond
	}
}

// newLayout returns the layout with the given name, or with explicit radices if the name is empty. Its errors are
// *topology.FieldError.
func newLayout(name string, radices []int, resolution time.Duration) (layout, error) {
	if resolution < minResolution || resolution > maxResolution || resolution%time.Millisecond != 0 {
		return layout{}, &topology.FieldError{
			Of: "bucket", Field: "Resolution", Value: resolution,
			Want: "whole milliseconds from " + topology.FormatDuration(minResolution) + " to " + topology.FormatDuration(maxResolution),
		}
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

// fill computes the units and the maximum from the radices. It rejects a layout with a queue whose TTL exceeds the
// broker's maximum. That limit also keeps all arithmetic on durations far from overflow.
func (l *layout) fill(name string) error {
	unit := int64(1)
	bound := int64(topology.MaxTTL / l.resolution)
	for i, r := range l.radices {
		if unit > bound/(r-1) {
			err := &topology.FieldError{Of: "bucket", Field: "Radices", Value: l.radices, Want: fmt.Sprintf(
				"such that no queue's TTL is over RabbitMQ's maximum of %s; with the resolution %s, position %d exceeds it", topology.FormatDuration(topology.MaxTTL), topology.FormatDuration(l.resolution), i)}
			if name != "" {
				err.Field, err.Value = "Resolution", l.resolution
				err.Want = fmt.Sprintf("finer with the %s layout, because its longest queue TTL would exceed RabbitMQ's maximum of %s", name, topology.FormatDuration(topology.MaxTTL))
			}
			return err
		}
		l.units = append(l.units, unit)
		l.max += (r - 1) * unit
		unit *= r
	}
	return nil
}

// ttl returns how long a message stays in the queue of digit v at position i.
func (l *layout) ttl(i int, v int64) time.Duration {
	return time.Duration(v*l.units[i]) * l.resolution
}

// longest returns the layout's longest delay, which has every digit at its largest value.
func (l *layout) longest() time.Duration { return time.Duration(l.max) * l.resolution }

func checkRadices(radices []int) error {
	bad := func(want string) error {
		return &topology.FieldError{Of: "bucket", Field: "Radices", Value: radices, Want: want}
	}
	if len(radices) == 0 || len(radices) > maxPositions {
		return bad(fmt.Sprintf("1 to %d numbers, with the lowest position first", maxPositions))
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

// clockRadices returns the radices of the clock layout, starting at the unit that the resolution divides. For example,
// 10ms gives 100 hundredths of a second and 5s gives 12 parts of a minute.
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

// digits is a delay, as a number of resolutions, in the number system of a layout. Element 0 is the digit at the lowest
// position. Only the first len(layout.radices) elements are used.
type digits [maxPositions]int64

// write returns the digits of n and how many of them are not 0, which is the number of queues that the message passes
// through.
func (l *layout) write(n int64) (d digits, hops int) {
	for i := len(l.radices) - 1; i >= 0 && n > 0; i-- {
		d[i] = n / l.units[i]
		n -= d[i] * l.units[i]
		if d[i] != 0 {
			hops++
		}
	}
	return d, hops
}

// fewestHops returns the number from lo to hi with the fewest non-zero digits. If several numbers have equally few, it
// returns the smallest.
//
// The result is either lo itself or lo rounded up at some position. To see why, take any other number n above lo, and
// the highest position at which n and lo differ. There n has the larger digit. Non-zero digits of n below that position
// only cost hops. If they are all 0, n has no fewer non-zero digits than lo rounded up at that position, which is no
// larger than n.
//
// Each rounding clears the lowest non-zero digit and sets at most one other, so the hops never increase from one
// rounding to the next.
func (l *layout) fewestHops(lo, hi int64) (best int64, d digits, hops int) {
	cur, n := l.write(lo)
	best, d, hops = lo, cur, n
	value := lo
	for i := range len(l.radices) - 1 {
		if cur[i] == 0 {
			continue
		}
		value += (l.radices[i] - cur[i]) * l.units[i]
		if value > hi {
			break
		}
		cur[i] = 0
		n--
		// Because hi <= max, a carry never leaves the highest position.
		for j := i + 1; ; j++ {
			if cur[j] == 0 {
				n++
			}
			cur[j]++
			if cur[j] < l.radices[j] {
				break
			}
			cur[j] = 0
			n--
		}
		if n < hops {
			best, d, hops = value, cur, n
		}
	}
	return best, d, hops
}

// positional is a strategy that writes a delay as digits. Each value of each digit has a queue with a fixed TTL.
type positional struct {
	strategy string
	prefix   string
	deliver  string
	layout   layout
	keyTag   string     // precedes the digits of a routing key
	through  string     // the exchange in front of all queues; empty if each has an entry exchange
	names    [][]string // queue names by position and digit; "" for the digit 0
	overhead int        // maximum length of a routing key without the destination, in bytes
}

// newPositional fills in the queue names and the overhead. The call name(i, v) returns the name of the queue for digit
// v at position i.
func newPositional(p positional, name func(i int, v int64) string) positional {
	p.overhead = len(p.keyTag)
	for i, r := range p.layout.radices {
		names := make([]string, r)
		for v := int64(1); v < r; v++ {
			names[v] = name(i, v)
		}
		p.names = append(p.names, names)
		p.overhead += len(strconv.FormatInt(r-1, 10)) + 1
	}
	return p
}

// bindings returns a binding that matches the exact number of digits.
func (p *positional) bindings(dest topology.Destination) []topology.Binding {
	return []topology.Binding{{
		Exchange: p.deliver, Queue: dest.TargetQueue(p.prefix),
		RoutingKey: p.keyTag + strings.Repeat("*.", len(p.names)) + dest.Key(p.prefix),
	}}
}

// route rounds the delay up to the resolution. Within the tolerance it rounds further up, to the number with the fewest
// non-zero digits.
func (p *positional) route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	key, err := destinationKey(p.strategy, dest, p.prefix, p.overhead)
	if err != nil {
		return topology.Route{}, err
	}
	l := &p.layout
	if delay < 0 || tolerance < 0 {
		return topology.Route{}, negative(p.strategy, delay, tolerance, l.longest())
	}
	n := int64(delay / l.resolution)
	if delay%l.resolution != 0 {
		n++
	}
	if n > l.max {
		return topology.Route{}, &topology.DelayError{
			Strategy: p.strategy, Delay: delay, Max: l.longest(),
			Reason: "exceeds the longest delay of the layout " + l.tag,
			Hint:   "keep the message as a task (package schedule) until it is due sooner, or use a layout with a longer maximum",
		}
	}
	most := l.max
	if end := delay + tolerance; end >= delay { // false if the sum overflows
		most = min(max(n, int64(end/l.resolution)), l.max)
	}
	n, d, hops := l.fewestHops(n, most)
	exchange, queue := p.deliver, ""
	for i, names := range slices.Backward(p.names) { // find the highest digit that is not 0
		if d[i] != 0 {
			queue = names[d[i]]
			exchange = cmp.Or(p.through, queue)
			break
		}
	}
	return topology.Route{
		Exchange: exchange, Queue: queue, RoutingKey: p.routingKey(&d, key),
		Delay: time.Duration(n) * l.resolution, Hops: hops, Mandatory: true,
	}, nil
}

// routingKey concatenates the tag, the digits from the highest to the lowest, and the destination in one allocation.
func (p *positional) routingKey(d *digits, dest string) string {
	var buf [topology.MaxRoutingKey]byte
	k := append(buf[:0], p.keyTag...)
	for i := range slices.Backward(p.names) {
		k = strconv.AppendInt(k, d[i], 10)
		k = append(k, '.')
	}
	return string(append(k, dest...))
}
