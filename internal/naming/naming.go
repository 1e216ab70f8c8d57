// Package naming parses and builds the names of rabbitdelay's objects on a broker: the layout that a queue or an
// exchange belongs to, reserved names, and the names of locks, canaries and marker exchanges. It only parses and builds
// strings.
package naming

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
)

// Layout is the set of delay queues that an object belongs to according to its name.
type Layout struct {
	Name string // prefix of its objects' names, e.g. "delay.bucket.hex-classic"
	// Tag is the first word of its routing keys, e.g. "hex". Two layouts that differ only in the queue type have the
	// same tag.
	Tag string
}

// strategyTags maps the word after the prefix to the tag of objects whose names show no other tag.
var strategyTags = map[string]string{"bucket": "clock", "ttl": "ttl", "plugin": "plugin", "native": "native"}

// Ambiguous reports whether different configurations may share a layout with this name. It is false for bucket
// layouts, whose names contain their digits and resolution.
func (l Layout) Ambiguous() bool { return l.Tag == "ttl" || l.Tag == "plugin" || l.Tag == "native" }

// Native reports whether the broker holds each of the layout's messages until the message's own due time. Such messages
// may wait in any of the layout's queues, whatever the queue's TTL. While they wait, the broker does not count them as
// ready.
func (l Layout) Native() bool { return l.Tag == "native" }

// LayoutOf returns the layout of a delay queue, or of an exchange that routes to such queues or, with the plugin,
// replaces them. It returns false for all other names, including the delivery exchange, the parked queue and the route
// queues.
func LayoutOf(prefix, name string) (Layout, bool) {
	const classic = "classic" // the only queue type that appears in names
	rest, ok := strings.CutPrefix(name, prefix+".")
	strategy, rest, _ := strings.Cut(rest, ".")
	tag := strategyTags[strategy]
	if !ok || tag == "" {
		return Layout{}, false
	}
	l := Layout{Name: prefix + "." + strategy, Tag: tag}
	// A variant begins with a letter, while the name of a duration begins with a digit.
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

// DelaysOf returns the name of the layout that a delay queue belongs to. The layout may be rabbitdelay's or another
// system's.
func DelaysOf(prefix, name string) (layout string, ok bool) {
	if l, ok := LayoutOf(prefix, name); ok {
		return l.Name, true
	}
	return foreign.System(name)
}

// Tag returns the first word of a routing key or a binding key, which is a layout's tag.
func Tag(key string) string {
	tag, _, _ := strings.Cut(key, ".")
	return tag
}

// Reserved reports whether a name belongs to the strategies with this prefix, to their shared delivery objects, or to
// another system's delays.
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

// RouteQueue reports whether a name is that of a route queue, which forwards messages to an exchange destination.
func RouteQueue(prefix, name string) bool { return strings.HasPrefix(name, prefix+".route.") }

// LockQueue returns the name of the queue that serves as the lock for declaring a layout's bindings on a broker before
// RabbitMQ 4.3. The queue is exclusive, so only one connection at a time can hold the lock.
func LockQueue(prefix string) string { return prefix + ".lock" }

// CreationLock returns the name of the queue that serves as the lock for the creation of a queue. The lock's queue is
// exclusive, so only one connection at a time can hold the lock.
func CreationLock(prefix, queue string) string {
	sum := sha256.Sum256([]byte(queue))
	return LockQueue(prefix) + "." + base64.RawURLEncoding.EncodeToString(sum[:12])
}

// CanaryQueue returns the prefix of the names of temporary queues. A client sends test messages to such a queue to find
// out whether the broker delays messages until a given time.
func CanaryQueue(prefix string) string { return prefix + ".canary." }

// DeclaredExchange returns the prefix of the names of the exchanges that show that a topology was declared completely.
// The rest of such a name is a hash of the topology, see live.DeclaredExchange.
func DeclaredExchange(prefix string) string { return prefix + ".declared." }

// RequeueConsumer is the prefix of the consumer tags of requeue runs.
const RequeueConsumer = "requeue-"
