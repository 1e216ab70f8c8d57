package dlx

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// layoutTag matches the first word of the bucket layouts' routing keys: the layout's name or radices, followed by its
// resolution unless that is the default.
var layoutTag = regexp.MustCompile(`^(?:(clock|hex|binary)|r([0-9]+(?:x[0-9]+)*))(?:-([0-9a-z]+))?$`)

// DestinationKey extracts the destination (see topology.Destination.Key) from a routing key that Route of the bucket,
// ttl, levels or native strategy has returned, in any layout. It returns false for any other routing key.
func DestinationKey(routingKey string) (key string, ok bool) {
	tag, rest, _ := strings.Cut(routingKey, ".")
	if tag == ttlTag || tag == nativeTag {
		_, key, ok = strings.Cut(rest, ".")
		return key, ok
	}
	digits, ok := positions(tag)
	if tag == "0" || tag == "1" { // a key of Levels, which has no tag
		digits, ok = binaryPositions-1, true
	}
	for range digits {
		var digit string
		if digit, rest, ok = strings.Cut(rest, "."); !ok || strings.Trim(digit, "0123456789") != "" {
			return "", false
		}
	}
	return rest, ok
}

// positions returns the number of digits in the layout with the given tag.
func positions(tag string) (n int, ok bool) {
	m := layoutTag.FindStringSubmatch(tag)
	if m == nil {
		return 0, false
	}
	var radices []int
	if m[2] != "" {
		for text := range strings.SplitSeq(m[2], "x") {
			r, err := strconv.Atoi(text)
			if err != nil {
				return 0, false
			}
			radices = append(radices, r)
		}
	}
	resolution := defaultResolution(m[1])
	if m[3] != "" {
		var err error
		if resolution, err = topology.ParseDuration(m[3]); err != nil {
			return 0, false
		}
	}
	l, err := newLayout(m[1], radices, resolution)
	return len(l.radices), err == nil
}
