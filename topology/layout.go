package topology

import "strings"

// Layout is what the name of a strategy's object tells: which set of delay
// queues it belongs to.
type Layout struct {
	Name string // the beginning of its objects' names, e.g. "delay.bucket.hex-classic"
	// Tag is the first word of its routing keys, e.g. "hex". Two layouts that
	// differ in the queue type only have the same.
	Tag string
}

// strategyTags are the tags of the strategies whose objects show no other, by
// the word after the prefix.
var strategyTags = map[string]string{"bucket": "clock", "ttl": "ttl", "plugin": "plugin", "native": "native"}

// ambiguous tells whether configurations that differ have a layout of this name
// in common. A bucket layout's name tells its digits and its resolution.
func (l Layout) ambiguous() bool {
	return l.Tag == strategyTags["ttl"] || l.Tag == strategyTags["plugin"] || l.Tag == strategyTags["native"]
}

// Native tells whether the broker delays the layout's messages by an instant that
// each carries. They wait in any of its queues, whatever its TTL, and are not ready.
func (l Layout) Native() bool { return l.Tag == strategyTags["native"] }

// LayoutOf is the layout of a delay queue, or of an exchange before, between or
// instead of such queues. It is false for every other name, those of the
// delivery exchange, the parked queue and the route queues included.
func LayoutOf(prefix, name string) (Layout, bool) {
	rest, ok := strings.CutPrefix(name, prefix+".")
	strategy, rest, _ := strings.Cut(rest, ".")
	tag := strategyTags[strategy]
	if !ok || tag == "" {
		return Layout{}, false
	}
	l := Layout{Name: prefix + "." + strategy, Tag: tag}
	// A variant begins with a letter, the name of a duration with a digit.
	variant, _, _ := strings.Cut(rest, ".")
	if variant == "" || variant[0] >= '0' && variant[0] <= '9' || strings.HasPrefix(variant, "level-") {
		return l, true
	}
	l.Name += "." + variant
	if variant != string(Classic) {
		l.Tag = strings.TrimSuffix(variant, "-"+string(Classic))
	}
	return l, true
}

// tagOf is the first word of a routing key or of a binding.
func tagOf(key string) string {
	tag, _, _ := strings.Cut(key, ".")
	return tag
}
