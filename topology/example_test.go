package topology_test

import (
	"errors"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ParseYAML reports all problems in a file together, each with its position.
func ExampleParseYAML() {
	_, err := topology.ParseYAML([]byte(`
destinations:
  - queue: orders.expire
    retry: {max_attempts: 5, backoff: 10s, jitter: 2}
bindings:
  - {exchange: shop, queue: invoices}
`))
	if invalid, ok := errors.AsType[*topology.ValidationError](err); ok {
		for _, p := range invalid.Problems {
			fmt.Printf("line %d: %s: %s\n", p.Line, p.Path, p.Message)
		}
	}
	// Output:
	// line 4: destinations[0].retry.jitter: expected 0 to 1, got 2
	// line 6: bindings[0].exchange: exchange "shop" is not declared here; declare it (an existing one may be declared again with the same arguments) or correct the name
	// line 6: bindings[0].queue: queue "invoices" is not declared here; declare it (an existing one may be declared again with the same arguments) or correct the name
}
