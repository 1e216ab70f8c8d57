package topology

import (
	"math"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// scalar reports whether a node is a single value of one of the tags.
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

// optional reads into a pointer that stays nil when the key is absent or its
// value cannot be read.
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
	return func(n *yaml.Node, path string) {
		if d.scalar(n, path, "true or false", yamldoc.Boolean, "!!bool") {
			if err := n.Decode(dst); err != nil {
				d.Expected(n, path, "true or false")
			}
		}
	}
}

func (d *decoder) integer(dst *int64) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if d.scalar(n, path, "an integer", yamldoc.Integer, "!!int") {
			if err := n.Decode(dst); err != nil {
				d.Expected(n, path, "an integer of at most 64 bits")
			}
		}
	}
}

func (d *decoder) float(dst *float64) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if d.scalar(n, path, "a number", yamldoc.Number, "!!float", "!!int") {
			if err := n.Decode(dst); err != nil || math.IsNaN(*dst) || math.IsInf(*dst, 0) {
				*dst = 0
				d.Expected(n, path, "a finite number")
			}
		}
	}
}

func (d *decoder) duration(dst *time.Duration) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" && n.Value != "0" {
			v := yamldoc.Clip(n.Value)
			d.Failf(n, path, "a duration needs a unit, got the number %s; write %sms or %ss, whichever is meant", v, v, v)
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

// maxDepth bounds the nesting of an argument's value.
const maxDepth = 16

func (d *decoder) readArguments(n *yaml.Node, path string) map[string]any {
	d.MayBeNull()
	if d.Describing(yamldoc.Table) {
		return nil
	}
	if n.Kind == yaml.MappingNode {
		return d.table(n, path, 0)
	}
	if !yamldoc.IsNull(n) {
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

// value reads an argument's value: integers as int64, floats, booleans, text,
// lists and tables.
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
