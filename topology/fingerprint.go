package topology

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// fingerprint is a hash of the exchanges, queues and bindings with all their
// arguments, whatever their order.
func (t Topology) fingerprint() string {
	var lines []string
	line := func(v any) {
		text, err := json.Marshal(v) // with the keys of maps in order
		if err != nil {
			text = fmt.Append(nil, v)
		}
		lines = append(lines, string(text))
	}
	for _, e := range t.Exchanges {
		line([]any{KindExchange, e.Name, e.Kind, e.AutoDelete, e.Internal, e.Table()})
	}
	for _, q := range t.Queues {
		line([]any{KindQueue, q.Name, q.Table()})
	}
	for _, b := range t.Bindings {
		line([]any{KindBinding, b.Exchange, b.Queue, b.ToExchange, b.RoutingKey, b.Arguments})
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(lines), "\n")))
	return hex.EncodeToString(sum[:12])
}

// DeclaredExchange is the name of the exchange that says that a topology was
// declared completely. Nothing is bound to it.
func DeclaredExchange(prefix string, t Topology) string {
	return declaredPrefix(prefix) + t.fingerprint()
}

func declaredPrefix(prefix string) string { return prefix + ".declared." }
