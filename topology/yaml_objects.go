package topology

import (
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

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
		"dead_letter":            func(n *yaml.Node, p string) { q.DeadLetter = d.readDeadLetter(n, p) },
		"overflow":               d.text(&q.Overflow),
		"max_length":             optional(&q.MaxLength, d.integer),
		"max_length_bytes":       optional(&q.MaxLengthBytes, d.integer),
		"delivery_limit":         optional(&q.DeliveryLimit, d.integer),
		"single_active_consumer": d.boolean(&q.SingleActiveConsumer),
		"arguments":              func(n *yaml.Node, p string) { q.Arguments = d.readArguments(n, p) },
	})
	return q
}

func (d *decoder) readDeadLetter(n *yaml.Node, path string) *DeadLetter {
	dl := &DeadLetter{}
	named := false
	exchange := d.text(&dl.Exchange)
	d.Mapping(n, path, map[string]yamldoc.Field{
		"exchange":      func(n *yaml.Node, p string) { named = true; exchange(n, p) },
		"routing_key":   optional(&dl.RoutingKey, d.text),
		"at_least_once": d.boolean(&dl.AtLeastOnce),
	})
	if !named && !d.Problems.Cover(path) {
		d.Failf(n, path, "dead_letter needs the key exchange; \"\" names the default exchange")
	}
	return dl
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
		"retry":       func(n *yaml.Node, p string) { dest.Retry = d.readRetry(n, p) },
		"lead":        optional(&dest.Lead, d.duration),
		"ceiling":     func(n *yaml.Node, p string) { dest.Ceiling = d.readCeiling(n, p) },
		"dead_letter": d.text(&dest.DeadLetter),
	})
	return dest
}

func (d *decoder) readCeiling(n *yaml.Node, path string) *Ceiling {
	c := &Ceiling{}
	var burst int64
	d.Mapping(n, path, map[string]yamldoc.Field{
		"per_second": d.float(&c.PerSecond),
		"burst":      notZero(d, &burst, d.integer, "1 or more tasks at once"),
	})
	c.Burst = int(burst)
	return c
}

// readRetry reads a policy. In Go a field that is 0 means its default; who writes a 0
// down means 0.
func (d *decoder) readRetry(n *yaml.Node, path string) *Retry {
	r := &Retry{}
	var attempts, immediate int64
	d.Mapping(n, path, map[string]yamldoc.Field{
		"max_attempts": notZero(d, &attempts, d.integer, "1 or more deliveries in all"),
		"immediate":    d.integer(&immediate),
		"backoff":      notZero(d, &r.Backoff, d.duration, "1ms or more"),
		"max_backoff":  notZero(d, &r.MaxBackoff, d.duration, "backoff or more"),
		"multiplier":   notZero(d, &r.Multiplier, d.float, "1 or more"),
		"jitter":       d.jitter(&r.Jitter),
	})
	r.MaxAttempts, r.Immediate = int(attempts), int(immediate)
	return r
}

// notZero reads a value that cannot be 0.
func notZero[T int64 | float64 | time.Duration](d *decoder, dst *T, read func(*T) yamldoc.Field, want string) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		read(dst)(n, path)
		if *dst == 0 && !d.Problems.Cover(path) {
			d.Failf(n, path, "expected %s, got 0; leave the key out for the default", want)
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
