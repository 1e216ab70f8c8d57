package topology

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
)

// ParseYAML reads the keys exchanges, queues, bindings and destinations of a YAML document and validates the result.
// It reports every problem with its line, column and path in one *ValidationError: unknown and repeated keys, wrong
// types, and all problems that Validate finds.
//
// A destination's queue and its dead-letter queue need not be listed under queues, because WithDestinationQueues adds
// them with the default type.
func ParseYAML(data []byte, opts ...Option) (Topology, error) {
	var t Topology
	doc := yamldoc.Parse(data)
	doc.Known = func() *yamldoc.Shape {
		described := yamldoc.Parse(nil)
		return described.Describe(YAMLFields(described, &Topology{}))
	}
	doc.Document(YAMLFields(doc, &t))
	doc.Problems.Add(t.problems(newRules(opts)), doc.Places)
	if len(doc.Problems) == 0 {
		return t, nil
	}
	doc.Problems.Sort()
	return Topology{}, &ValidationError{Problems: published(doc.Problems)}
}

// YAMLFields returns functions that read the keys exchanges, queues, bindings and destinations into t. Use it for a
// document that also has other keys. Call Validate after the document has been read. It is for package config; other
// programs use ParseYAML.
func YAMLFields(doc *yamldoc.Reader, t *Topology) map[string]yamldoc.Field {
	d := &decoder{doc}
	doc.Reserved = argument.Names()
	return map[string]yamldoc.Field{
		"exchanges":    list(d, &t.Exchanges, d.readExchange),
		"queues":       list(d, &t.Queues, d.readQueue),
		"bindings":     list(d, &t.Bindings, d.readBinding),
		"destinations": list(d, &t.Destinations, d.readDestination),
	}
}

// decoder converts YAML nodes to a Topology.
type decoder struct{ *yamldoc.Reader }

func list[T any](d *decoder, dst *[]T, item func(*yaml.Node, string) T) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		d.List(n, path, func(n *yaml.Node, path string) { *dst = append(*dst, item(n, path)) })
	}
}

func (d *decoder) readExchange(n *yaml.Node, path string) (e Exchange) {
	d.Mapping(n, path, map[string]yamldoc.Field{
		"name":               d.text(&e.Name),
		"type":               d.text(&e.Kind),
		"auto_delete":        d.boolean(&e.AutoDelete),
		"internal":           d.boolean(&e.Internal),
		"alternate_exchange": d.text(&e.AlternateExchange),
		"arguments":          func(n *yaml.Node, p string) { e.Arguments = d.readArguments(n, p) },
	})
	return e
}

func (d *decoder) readQueue(n *yaml.Node, path string) (q Queue) {
	d.Mapping(n, path, map[string]yamldoc.Field{
		"name":                   d.text(&q.Name),
		"type":                   d.text((*string)(&q.Type)),
		"message_ttl":            optional(&q.MessageTTL, d.duration),
		"dead_letter":            optional(&q.DeadLetter, d.readDeadLetter),
		"overflow":               d.text(&q.Overflow),
		"max_length":             optional(&q.MaxLength, d.integer),
		"max_length_bytes":       optional(&q.MaxLengthBytes, d.integer),
		"delivery_limit":         optional(&q.DeliveryLimit, d.integer),
		"single_active_consumer": d.boolean(&q.SingleActiveConsumer),
		"arguments":              func(n *yaml.Node, p string) { q.Arguments = d.readArguments(n, p) },
	})
	return q
}

func (d *decoder) readDeadLetter(dst *DeadLetter) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		named := false
		exchange := d.text(&dst.Exchange)
		d.Mapping(n, path, map[string]yamldoc.Field{
			"exchange":      func(n *yaml.Node, p string) { named = true; exchange(n, p) },
			"routing_key":   optional(&dst.RoutingKey, d.text),
			"at_least_once": d.boolean(&dst.AtLeastOnce),
		})
		if !named && !d.Problems.Cover(path) {
			d.Failf(n, path, "dead_letter needs the key exchange; \"\" names the default exchange")
		}
	}
}

func (d *decoder) readBinding(n *yaml.Node, path string) (b Binding) {
	d.Mapping(n, path, map[string]yamldoc.Field{
		"exchange":    d.text(&b.Exchange),
		"queue":       d.text(&b.Queue),
		"to_exchange": d.text(&b.ToExchange),
		"routing_key": d.text(&b.RoutingKey),
		"arguments":   func(n *yaml.Node, p string) { b.Arguments = d.readArguments(n, p) },
	})
	return b
}

func (d *decoder) readDestination(n *yaml.Node, path string) (dest Destination) {
	d.Mapping(n, path, map[string]yamldoc.Field{
		"name":        d.text(&dest.Name),
		"queue":       d.text(&dest.Queue),
		"exchange":    d.text(&dest.Exchange),
		"routing_key": d.text(&dest.RoutingKey),
		"retry":       optional(&dest.Retry, d.readRetry),
		"lead":        optional(&dest.Lead, d.duration),
		"rate_limit":  optional(&dest.RateLimit, d.readRateLimit),
		"dead_letter": d.text(&dest.DeadLetter),
	})
	return dest
}

func (d *decoder) readRateLimit(dst *RateLimit) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		d.Mapping(n, path, map[string]yamldoc.Field{
			"per_second": d.float(&dst.PerSecond),
			"burst":      notZero(d, &dst.Burst, d.number, "1 or more tasks"),
		})
	}
}

// readRetry reads a retry policy. In Go a field that is 0 means its default, but in YAML an explicit 0 means 0.
func (d *decoder) readRetry(dst *Retry) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		d.Mapping(n, path, map[string]yamldoc.Field{
			"max_attempts":      notZero(d, &dst.MaxAttempts, d.number, "1 or more deliveries in total"),
			"immediate_retries": d.number(&dst.ImmediateRetries),
			"backoff":           notZero(d, &dst.Backoff, d.duration, "1ms or more"),
			"max_backoff":       notZero(d, &dst.MaxBackoff, d.duration, "backoff or more"),
			"multiplier":        notZero(d, &dst.Multiplier, d.float, "1 or more"),
			"jitter":            d.jitter(&dst.Jitter),
		})
	}
}

// notZero reads a value and rejects 0, because in Go a 0 would mean the default.
func notZero[T int | float64 | time.Duration](d *decoder, dst *T, read func(*T) yamldoc.Field, want string) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		read(dst)(n, path)
		if *dst == 0 && !d.Problems.Cover(path) {
			d.Failf(n, path, "expected %s, got 0; omit the key for the default", want)
		}
	}
}

func (d *decoder) jitter(dst *float64) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		d.float(dst)(n, path)
		switch {
		case d.Problems.Cover(path):
		case *dst < 0:
			d.Failf(n, path, "expected 0 to 1, got %v", *dst)
		case *dst == 0:
			*dst = NoJitter
		}
	}
}

// scalar returns true if a node is a scalar with one of the tags, and records a problem if it is not. While the shape
// of documents is being described, it only records the kind, and returns false.
func (d *decoder) scalar(n *yaml.Node, path, expected string, kind yamldoc.Kind, tags ...string) bool {
	if d.Describing(kind) {
		return false
	}
	if n.Kind == yaml.ScalarNode && slices.Contains(tags, n.ShortTag()) {
		return true
	}
	d.Expected(n, path, expected)
	return false
}

// optional reads a value into a pointer, which stays nil if the key is absent.
func optional[T any](dst **T, read func(*T) yamldoc.Field) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		*dst = new(T)
		read(*dst)(n, path)
	}
}

func (d *decoder) text(dst *string) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if d.scalar(n, path, "text (put a number, a date, true or false in quotes)", yamldoc.Text, "!!str") {
			*dst = n.Value
		}
	}
}

func (d *decoder) boolean(dst *bool) yamldoc.Field {
	return decoded(d, dst, yamldoc.Boolean, "true or false", "true or false", "!!bool")
}

func (d *decoder) integer(dst *int64) yamldoc.Field { return whole(d, dst) }

func (d *decoder) number(dst *int) yamldoc.Field { return whole(d, dst) }

func whole[T int | int64](d *decoder, dst *T) yamldoc.Field {
	exact := fmt.Sprintf("an integer of at most %d bits", reflect.TypeFor[T]().Bits())
	return decoded(d, dst, yamldoc.Integer, "an integer", exact, "!!int")
}

func (d *decoder) float(dst *float64) yamldoc.Field {
	read := decoded(d, dst, yamldoc.Number, "a number", "a finite number", "!!float", "!!int")
	return func(n *yaml.Node, path string) {
		if read(n, path); math.IsNaN(*dst) || math.IsInf(*dst, 0) {
			*dst = 0
			d.Expected(n, path, "a finite number")
		}
	}
}

// decoded reads a scalar with one of the tags. If it has the tag but cannot be decoded, the problem names exact as
// the expected value.
func decoded[T any](d *decoder, dst *T, kind yamldoc.Kind, expected, exact string, tags ...string) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if d.scalar(n, path, expected, kind, tags...) && n.Decode(dst) != nil {
			d.Expected(n, path, exact)
		}
	}
}

func (d *decoder) duration(dst *time.Duration) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" && n.Value != "0" {
			v := yamldoc.Clip(n.Value)
			d.Failf(n, path, "a duration needs a unit, got the number %s; write %sms or %ss", v, v, v)
			return
		}
		if !d.scalar(n, path, "a duration such as 1500ms, 60s, 30m, 48h or 7d", yamldoc.Duration, "!!str", "!!int") {
			return
		}
		v, err := ParseDuration(n.Value)
		if err != nil {
			d.Failf(n, path, "%v", err)
			return
		}
		*dst = v
	}
}

// maxDepth limits the nesting of an argument's value.
const maxDepth = 16

func (d *decoder) readArguments(n *yaml.Node, path string) map[string]any {
	d.MayBeNull()
	switch {
	case d.Describing(yamldoc.Table):
	case n.Kind == yaml.MappingNode:
		return d.table(n, path, 0)
	case !yamldoc.IsNull(n):
		d.Expected(n, path, "a mapping of argument names to values")
	}
	return nil
}

func (d *decoder) table(n *yaml.Node, path string, depth int) map[string]any {
	t := map[string]any{}
	d.Entries(n, path, func(key, value *yaml.Node, at string) {
		d.Value(value, at, func(n *yaml.Node, path string) { t[key.Value] = d.value(n, path, depth) })
	})
	return t
}

// value reads an argument's value: an integer as int64, a float, a boolean, text, a list or a table.
func (d *decoder) value(n *yaml.Node, path string, depth int) any {
	switch {
	case depth > maxDepth:
		d.Failf(n, path, "values are nested deeper than %d levels", maxDepth)
		return ""
	case n.Kind == yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		d.List(n, path, func(n *yaml.Node, path string) { list = append(list, d.value(n, path, depth+1)) })
		return list
	case n.Kind == yaml.MappingNode:
		return d.table(n, path, depth+1)
	}
	switch n.ShortTag() {
	case "!!str":
		return n.Value
	case "!!bool":
		var b bool
		d.boolean(&b)(n, path)
		return b
	case "!!int":
		var i int64
		d.integer(&i)(n, path)
		return i
	case "!!float":
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
	}
	d.Expected(n, path, "text, an integer, a finite number, a boolean, a list or a mapping")
	return ""
}
