package topology

import (
	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// ParseYAML reads the keys exchanges, queues, bindings and destinations of a
// YAML document and validates them. Every problem is reported, with its line,
// column and path, in one *ValidationError: unknown and repeated keys, wrong
// types, and all that Validate refuses.
//
// A destination's queue, and its dead-letter queue, need not stand under
// queues: WithDestinationQueues adds them with the default type.
func ParseYAML(data []byte, opts ...Option) (Topology, error) {
	rules := newRules(opts)
	var t Topology
	doc := yamldoc.Parse(data)
	fields := YAMLFields(doc, &t)
	for _, k := range rules.otherKeys {
		if fields[k] == nil {
			fields[k] = func(*yaml.Node, string) {}
		}
	}
	doc.Document(fields)
	doc.Problems.Add(t.problems(rules), doc.Places)
	if len(doc.Problems) == 0 {
		return t, nil
	}
	doc.Problems.Sort()
	return Topology{}, &ValidationError{Problems: doc.Problems}
}

// YAMLFields read the keys exchanges, queues, bindings and destinations into t, for
// a document with keys of one's own. Validate it when the document has been read.
func YAMLFields(doc *yamldoc.Reader, t *Topology) map[string]yamldoc.Field {
	d := &decoder{doc}
	return map[string]yamldoc.Field{
		"exchanges":    list(d, &t.Exchanges, d.readExchange),
		"queues":       list(d, &t.Queues, d.readQueue),
		"bindings":     list(d, &t.Bindings, d.readBinding),
		"destinations": list(d, &t.Destinations, d.readDestination),
	}
}

// decoder turns nodes into a Topology.
type decoder struct{ *yamldoc.Reader }

func list[T any](d *decoder, dst *[]T, item func(*yaml.Node, string) T) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		d.List(n, path, func(n *yaml.Node, path string) { *dst = append(*dst, item(n, path)) })
	}
}
