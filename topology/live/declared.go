package live

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// fingerprint is a hash of the exchanges, queues and bindings with all their
// arguments, whatever their order.
func fingerprint(t topology.Topology) string {
	var lines []string
	line := func(v any) {
		text, err := json.Marshal(v) // with the keys of maps in order
		if err != nil {
			text = fmt.Append(nil, v)
		}
		lines = append(lines, string(text))
	}
	for _, e := range t.Exchanges {
		line([]any{topology.KindExchange, e.Name, e.Kind, e.AutoDelete, e.Internal, e.Table()})
	}
	for _, q := range t.Queues {
		line([]any{topology.KindQueue, q.Name, q.Table()})
	}
	for _, b := range t.Bindings {
		line([]any{topology.KindBinding, b.Exchange, b.Queue, b.ToExchange, b.RoutingKey, b.Arguments})
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(lines), "\n")))
	return hex.EncodeToString(sum[:12])
}

// DeclaredExchange returns the name of the exchange that marks a topology as
// completely declared. Nothing is bound to it.
func DeclaredExchange(prefix string, t topology.Topology) string {
	return naming.DeclaredExchange(prefix) + fingerprint(t)
}
