// Package yamldoc reads YAML documents that are written by hand. It reports all problems together, each with its
// path, line and column.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
)

// Reader reads one document, and collects its problems and the places of its values.
type Reader struct {
	Problems Problems
	Places   Places // places of all values that were read
	// Expand, if set, replaces variables in a scalar value before it is read. The result of an unquoted value is read
	// as if it had been written in the document, while a quoted value remains a string.
	Expand func(path, text string) (string, error)
	// Hidden reports whether messages must not show a value. Nil means that all values may be shown.
	Hidden func(path string) bool
	// Known returns a description of the whole document, for hints about where an unknown key belongs. It may be nil.
	Known func() *Shape
	// Reserved lists keys that begin with x- and have a meaning elsewhere. Below the top level they are unknown keys.
	Reserved []string

	root  *yaml.Node
	shape *Shape // the shape being described; nil while a document is read
}

// Field reads the value at path. The node is never an alias, because Reader resolves aliases.
type Field func(n *yaml.Node, path string)

// Parse parses a document. If it is not valid YAML, the problem is in the returned reader's Problems.
func Parse(data []byte) *Reader {
	r := &Reader{Places: Places{}}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if err == nil {
		err = dec.Decode(&second)
	}
	switch {
	case err == nil:
		r.Failf(&second, "", "a second document begins here; put everything into one document")
	case !errors.Is(err, io.EOF):
		r.syntax(err)
	case len(doc.Content) > 0:
		r.root = doc.Content[0]
	}
	return r
}

func (r *Reader) syntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var at Place
	if n, _ := fmt.Sscanf(text, "line %d:", &at.Line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
	}
	if strings.HasPrefix(text, "unknown anchor") { // the error quotes the value, which may be a password
		text = "an alias (a value that begins with *) without an anchor; put the value in quotes if it is not meant as an alias"
	}
	switch text {
	case "found character that cannot start any token":
		text = "a value begins with a tab or with one of @ ` %; indent with spaces, and put a value that begins with such a character in quotes"
	case "found a tab character that violates indentation":
		text = "a tab in the indentation; indent with spaces"
	}
	r.Problems.Addf(at, "", "not YAML: %s", text)
}

// Empty reports whether the document contains no value: it is empty, null, or contains only comments.
func (r *Reader) Empty() bool {
	return len(r.Problems) == 0 && (r.root == nil || IsNull(r.root))
}

// Document reads the document's keys. It does nothing for an empty document, and reports a problem for one that is
// too large.
func (r *Reader) Document(fields map[string]Field) {
	if r.root == nil || IsNull(r.root) {
		return
	}
	left := maxValues
	if n := beyond(r.root, &left); n != nil {
		r.Failf(n, "", "more than %d values with all aliases written out; split the file", maxValues)
		return
	}
	r.Mapping(r.root, "", fields)
}

// maxValues limits the number of values, because nested aliases can multiply them.
const maxValues = 100_000

// beyond subtracts 1 from *left for each value in a node, and returns the first value after *left has reached 0. It
// returns nil if there is none.
func beyond(n *yaml.Node, left *int) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return beyond(n.Alias, left)
	}
	for i, v := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			continue // skip keys
		}
		if *left--; *left < 0 {
			return v
		}
		if found := beyond(v, left); found != nil {
			return found
		}
	}
	return nil
}

// Failf reports a problem with a node.
func (r *Reader) Failf(n *yaml.Node, path, format string, args ...any) {
	r.Problems.Addf(Place{Line: n.Line, Column: n.Column}, path, format, args...)
}

// Expected reports that a node is not what was expected, unless there is already a problem at path.
func (r *Reader) Expected(n *yaml.Node, path, what string) { r.expected(n, path, what+",") }

func (r *Reader) expected(n *yaml.Node, path, what string) {
	if !r.Problems.At(path) {
		r.Failf(n, path, "expected %s got %s", what, r.describe(n, path))
	}
}

// Mapping reads a mapping with the given keys. As in compose files, it ignores other keys that begin with x-, which can
// contain notes or anchors. Two kinds of them are nevertheless unknown keys below the top level, because they look like
// broker arguments that have been written in the wrong place: reserved keys, and all keys in a mapping that also has
// the key arguments.
func (r *Reader) Mapping(n *yaml.Node, path string, fields map[string]Field) {
	if r.shape != nil {
		r.shape.Kind, r.shape.Fields, r.shape.Extensible = Object, map[string]*Shape{}, extensible(path, fields)
		for key, read := range fields {
			r.shape.Fields[key] = r.below(strings.TrimPrefix(path+"."+key, "."), read)
		}
		return
	}
	keys := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
	if n.Kind != yaml.MappingNode {
		r.expected(n, path, "a mapping with the keys "+keys+";")
		return
	}
	r.Entries(n, path, func(key, value *yaml.Node, at string) {
		read, ok := fields[key.Value]
		switch {
		case ok:
			r.Value(value, at, read)
		case strings.HasPrefix(key.Value, "x-") && extensible(path, fields) && (path == "" || !slices.Contains(r.Reserved, key.Value)):
		default:
			r.Failf(key, at, "unknown key %q; expected one of %s%s", Clip(key.Value), keys, r.hint(key.Value, path, fields))
		}
	})
}

// argumentsKey is the key of a mapping's broker arguments.
const argumentsKey = "arguments"

// extensible reports whether a mapping may have keys that begin with x-.
func extensible(path string, fields map[string]Field) bool {
	return path == "" || fields[argumentsKey] == nil
}

// hint returns what the writer of an unknown key may have meant, with "; " in front, or "".
func (r *Reader) hint(key, path string, fields map[string]Field) string {
	if meant := naming.DidYouMean(key, slices.Sorted(maps.Keys(fields))); meant != "" {
		return meant
	}
	if strings.HasPrefix(key, "x-") {
		return "; an argument of RabbitMQ belongs below " + argumentsKey + " of a queue, an exchange or a binding"
	}
	if r.Known == nil || strings.Contains(key, "://") {
		return ""
	}
	known := r.Known()
	if parent, last, nested := cutLast(key); nested && path == "" && known.at(parent).has(last) {
		return fmt.Sprintf("; write it as a mapping: %s: {%s: …}", strings.ReplaceAll(parent, ".", ": {"), last) + strings.Repeat("}", strings.Count(parent, "."))
	}
	var parents []string
	known.find(key, "", &parents)
	if len(parents) == 0 || len(parents) > maxParents {
		return ""
	}
	slices.Sort(parents)
	return fmt.Sprintf("; %s belongs below %s", Clip(key), strings.Join(parents, " or "))
}

// maxParents is the maximum number of places that a hint names. A key that occurs in more places, such as name, gets no
// hint.
const maxParents = 3

func cutLast(path string) (parent, last string, nested bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// Entries calls read for each entry of a mapping with arbitrary keys, and reports repeated keys. Pass the values to
// Value to read them.
func (r *Reader) Entries(n *yaml.Node, path string, read func(key, value *yaml.Node, at string)) {
	lines := map[string]int{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			r.Failf(key, path, "expected a key, got %s", r.describe(key, path))
			continue
		}
		at := strings.TrimPrefix(path+"."+Clip(key.Value), ".")
		line, repeated := lines[key.Value]
		switch {
		case repeated:
			r.Failf(key, at, "the key %q already occurs in line %d; remove one of them", Clip(key.Value), line)
			continue
		case key.Tag == "!!merge":
			merged = append(merged, r.mergeSources(n.Content[i+1], at)...)
		default:
			read(key, n.Content[i+1], at)
		}
		lines[key.Value] = key.Line
	}
	r.merge(merged, path, lines, read)
}

// merge calls read for the entries of merged mappings whose keys have not been read. If several mappings contain a key,
// the first one wins, and a key of the mapping itself wins over all of them.
func (r *Reader) merge(sources []*yaml.Node, path string, lines map[string]int, read func(key, value *yaml.Node, at string)) {
	for _, source := range sources {
		r.Entries(source, path, func(key, value *yaml.Node, at string) {
			if _, given := lines[key.Value]; !given {
				lines[key.Value] = key.Line
				read(key, value, at)
			}
		})
	}
}

// mergeSources returns the mappings that the value of a merge key (<<) names.
func (r *Reader) mergeSources(n *yaml.Node, path string) []*yaml.Node {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = n.Content
	}
	var sources []*yaml.Node
	for _, item := range items {
		source := item
		if item.Kind == yaml.AliasNode {
			source = item.Alias
		}
		if source.Kind != yaml.MappingNode {
			r.Failf(item, path, "expected an alias of a mapping, such as <<: *name, or a list of them; got %s", r.describe(source, path))
			continue
		}
		sources = append(sources, source)
	}
	return sources
}

// List reads a list. An empty value is an empty list.
func (r *Reader) List(n *yaml.Node, path string, item Field) {
	switch {
	case r.shape != nil:
		r.shape.Kind, r.shape.Null = List, true
		r.shape.Item = r.below(path+"[0]", item)
	case n.Kind == yaml.SequenceNode:
		for i, c := range n.Content {
			r.Value(c, fmt.Sprintf("%s[%d]", path, i), item)
		}
	case !IsNull(n):
		r.Expected(n, path, `a list (each item begins with "- ")`)
	}
}

// Value reads the value of a key or of a list's item. It resolves an alias and expands variables. The value of an
// alias has the alias's place.
func (r *Reader) Value(n *yaml.Node, path string, read Field) {
	r.Places[path] = Place{Line: n.Line, Column: n.Column}
	value := *n
	if n.Kind == yaml.AliasNode {
		value = *n.Alias
		value.Line, value.Column = n.Line, n.Column
	}
	if r.Expand != nil && value.Kind == yaml.ScalarNode {
		text, err := r.Expand(path, value.Value)
		switch {
		case err != nil:
			r.Failf(&value, path, "%v", err)
		case text != value.Value:
			value.Value = text
			if value.Style == 0 {
				value.Tag = "" // let the decoder determine the tag again
			}
		}
	}
	read(&value, path)
}

// IsNull reports whether a value is null or empty.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe returns a description of a node for messages.
func (r *Reader) describe(n *yaml.Node, path string) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case IsNull(n):
		return "nothing"
	case r.Hidden != nil && r.Hidden(path):
		return "a single value"
	}
	v := Clip(n.Value)
	switch n.ShortTag() {
	case "!!bool":
		return "the boolean " + v
	case "!!int", "!!float":
		return "the number " + v
	case "!!timestamp":
		return "the date " + v
	case "!!str":
		return fmt.Sprintf("the text %q", v)
	}
	return fmt.Sprintf("%q with the tag %s", v, Clip(n.ShortTag()))
}
