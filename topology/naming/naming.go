// Package naming reads the names of rabbitdelay's objects on a broker: which layout a
// queue or an exchange belongs to, which names are reserved, and the names
// of locks, canaries and marks. It knows no object, only text.
package naming

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology/foreign"
)

// Layout is the set of delay queues that an object's name shows it to belong to.
type Layout struct {
	Name string // the beginning of its objects' names, e.g. "delay.bucket.hex-classic"
	// Tag is the first word of its routing keys, e.g. "hex". Two layouts that
	// differ in the queue type only have the same.
	Tag string
}

// strategyTags are the tags of the strategies whose objects show no other, by
// the word after the prefix.
var strategyTags = map[string]string{"bucket": "clock", "ttl": "ttl", "plugin": "plugin", "native": "native"}

// Ambiguous reports whether configurations that differ have a layout of this name
// in common. A bucket layout's name shows its digits and its resolution.
func (l Layout) Ambiguous() bool { return l.Tag == "ttl" || l.Tag == "plugin" || l.Tag == "native" }

// Native reports whether the broker delays the layout's messages by an instant that
// each carries. They wait in any of its queues, whatever its TTL, and are not ready.
func (l Layout) Native() bool { return l.Tag == "native" }

// LayoutOf returns the layout of a delay queue, or of an exchange before, between or
// instead of such queues. It is false for every other name, those of the
// delivery exchange, the parked queue and the route queues included.
func LayoutOf(prefix, name string) (Layout, bool) {
	const classic = "classic" // the queue type that shows in names
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
	if variant != classic {
		l.Tag = strings.TrimSuffix(variant, "-"+classic)
	}
	return l, true
}

// DelaysOf returns the name of the layout that a delay queue belongs to, rabbitdelay's
// or another system's.
func DelaysOf(prefix, name string) (layout string, ok bool) {
	if l, ok := LayoutOf(prefix, name); ok {
		return l.Name, true
	}
	return foreign.System(name)
}

// Tag returns the first word of a routing key or of a binding's key: a layout's tag.
func Tag(key string) string {
	tag, _, _ := strings.Cut(key, ".")
	return tag
}

// Reserved reports whether a name belongs to the strategies with this prefix, to
// their shared delivery objects, or to the delays of another system.
func Reserved(prefix, name string) bool {
	if _, ok := foreign.System(name); ok {
		return true
	}
	rest, ok := strings.CutPrefix(name, prefix+".")
	if !ok {
		return false
	}
	word, _, _ := strings.Cut(rest, ".")
	switch word {
	case "bucket", "ttl", "plugin", "native", "canary", "deliver", "parked", "route", "lock", "declared":
		return true
	}
	return false
}

// RouteQueue reports whether a name is that of a queue that forwards to an exchange destination.
func RouteQueue(prefix, name string) bool { return strings.HasPrefix(name, prefix+".route.") }

// LockQueue returns the queue by which one connection at a time makes the bindings of
// a layout on a broker before RabbitMQ 4.3. It is exclusive to that connection.
func LockQueue(prefix string) string { return prefix + ".lock" }

// CreationLock returns the queue by which one connection at a time creates a queue. It
// is exclusive to that connection.
func CreationLock(prefix, queue string) string {
	sum := sha256.Sum256([]byte(queue))
	return LockQueue(prefix) + "." + base64.RawURLEncoding.EncodeToString(sum[:12])
}

// CanaryQueue begins the names of the temporary queues to which a client sends
// messages that prove that the broker delays by an instant.
func CanaryQueue(prefix string) string { return prefix + ".canary." }

// DeclaredExchange begins the names of the exchanges that mark a topology as
// completely declared. The rest is a hash of the topology, see live.DeclaredExchange.
func DeclaredExchange(prefix string) string { return prefix + ".declared." }

// RequeueConsumer begins the tags of the consumers by which a run of requeue takes
// messages.
const RequeueConsumer = "requeue-"
