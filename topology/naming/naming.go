// Package naming reads the names of rabbitdelay's objects on a broker: which layout a
// queue or an exchange belongs to (layout.go), which names are reserved, and the names
// of locks, canaries and marks. It knows no object, only text.
package naming

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology/foreign"
)

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
