package topology

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// scalar gives the node of a single value.
func (d *decoder) scalar(n *yaml.Node, path, expected string, tags ...string) (*yaml.Node, bool) {
	n, ok := d.resolve(n, path)
	if !ok {
		return nil, false
	}
	if n.Kind == yaml.ScalarNode && slices.Contains(tags, n.ShortTag()) {
		return n, true
	}
	d.failf(n, path, "expected %s, got %s", expected, describeNode(n))
	return nil, false
}

// optional reads into a pointer that stays nil when the key is absent or its
// value cannot be read.
func optional[T any](dst **T, read func(*T) field) field {
	return func(n *yaml.Node, path string) {
		*dst = new(T)
		read(*dst)(n, path)
	}
}

func (d *decoder) text(dst *string) field {
	return func(n *yaml.Node, path string) {
		if n, ok := d.scalar(n, path, "text (put a number, a date, true or false in quotes)", "!!str"); ok {
			*dst = n.Value
		}
	}
}

func (d *decoder) boolean(dst *bool) field {
	return func(n *yaml.Node, path string) {
		if n, ok := d.scalar(n, path, "true or false", "!!bool"); ok {
			if err := n.Decode(dst); err != nil {
				d.failf(n, path, "expected true or false, got %s", describeNode(n))
			}
		}
	}
}

func (d *decoder) integer(dst *int64) field {
	return func(n *yaml.Node, path string) {
		if n, ok := d.scalar(n, path, "an integer", "!!int"); ok {
			if err := n.Decode(dst); err != nil {
				d.failf(n, path, "expected an integer of at most 64 bits, got %s", describeNode(n))
			}
		}
	}
}

func (d *decoder) float(dst *float64) field {
	return func(n *yaml.Node, path string) {
		if n, ok := d.scalar(n, path, "a number", "!!float", "!!int"); ok {
			if err := n.Decode(dst); err != nil || math.IsNaN(*dst) || math.IsInf(*dst, 0) {
				*dst = 0
				d.failf(n, path, "expected a finite number, got %s", describeNode(n))
			}
		}
	}
}

func (d *decoder) duration(dst *time.Duration) field {
	return func(n *yaml.Node, path string) {
		n, ok := d.resolve(n, path)
		if !ok {
			return
		}
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" && n.Value != "0" {
			d.failf(n, path, "a duration needs a unit, got the number %s; write %sms or %ss, whichever is meant", clip(n.Value), clip(n.Value), clip(n.Value))
			return
		}
		n, ok = d.scalar(n, path, "a duration such as 1500ms, 60s, 30m, 48h or 7d", "!!str", "!!int")
		if !ok {
			return
		}
		v, err := ParseDuration(n.Value)
		if err != nil {
			d.failf(n, path, "%v", err)
			return
		}
		*dst = v
	}
}

// maxDepth bounds the nesting of an argument's value.
const maxDepth = 16

func (d *decoder) arguments(n *yaml.Node, path string) map[string]any {
	n, ok := d.resolve(n, path)
	if !ok || isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.failf(n, path, "expected a mapping of argument names to values, got %s", describeNode(n))
		return nil
	}
	return d.table(n, path, 0)
}

func (d *decoder) table(n *yaml.Node, path string, depth int) map[string]any {
	t := map[string]any{}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Value == "<<" && key.Tag == "!!merge" {
			d.failf(key, path, "expected the name of an argument, got %s", describeNode(key))
			continue
		}
		at := joinPath(path, key.Value)
		if line, ok := lines[key.Value]; ok {
			d.failf(key, at, "the argument %q already stands in line %d; remove one", clip(key.Value), line)
			continue
		}
		lines[key.Value] = key.Line
		d.positions[at] = position{value.Line, value.Column}
		t[key.Value] = d.value(value, at, depth)
	}
	return t
}

// value reads an argument's value: integers as int64, floats, booleans, text,
// lists and tables.
func (d *decoder) value(n *yaml.Node, path string, depth int) any {
	n, ok := d.resolve(n, path)
	if !ok {
		return ""
	}
	if depth > maxDepth {
		d.failf(n, path, "values are nested deeper than %d levels", maxDepth)
		return ""
	}
	if n.Kind == yaml.SequenceNode {
		list := make([]any, len(n.Content))
		for i, c := range n.Content {
			list[i] = d.value(c, fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
		return list
	}
	if n.Kind == yaml.MappingNode {
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
	d.failf(n, path, "expected text, an integer, a finite number, a boolean, a list or a mapping, got %s", describeNode(n))
	return ""
}
