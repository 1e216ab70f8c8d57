package topology

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ParseYAML reads the keys exchanges, queues, bindings and destinations of a
// YAML document and validates them. Every problem is reported, with its line,
// column and path, in one *ValidationError: unknown and repeated keys, wrong
// types, and all that Validate refuses.
//
// A destination's queue, and its dead-letter queue, need not stand under
// queues: WithDestinationQueues adds them with the default type.
func ParseYAML(data []byte, opts ...Option) (Topology, error) {
	root, err := documentNode(data)
	if err != nil {
		return Topology{}, err
	}
	return ParseNode(root, opts...)
}

// ParseNode is ParseYAML for the root of a document that was parsed already, for
// instance to put values into it; nil is an empty one.
func ParseNode(root *yaml.Node, opts ...Option) (Topology, error) {
	r := newRules(opts)
	d := &decoder{positions: map[string]position{}}
	t := d.topology(root, r.otherKeys)
	v := newValidator(t, r)
	v.run()
	for _, p := range v.problems {
		if !d.failed(p.Path) && len(d.problems) < maxProblems {
			d.problems = append(d.problems, d.locate(p))
		}
	}
	if len(d.problems) == 0 {
		return t, nil
	}
	sort.SliceStable(d.problems, func(i, j int) bool {
		a, b := d.problems[i], d.problems[j]
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return Topology{}, &ValidationError{Problems: d.problems}
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// documentNode is the root of the only document; nil for an empty one.
func documentNode(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxError(err)
	}
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, syntaxError(err)
	default:
		return nil, &ValidationError{Problems: []Problem{{
			Line: second.Line, Column: second.Column,
			Message: "a second document begins here; put everything into one",
		}}}
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	return doc.Content[0], nil
}

func syntaxError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.Contains(text, "unknown anchor") { // which it quotes, and which may be a password
		text = "an alias (a value that begins with *) without its anchor; put the value in quotes if it is none"
	}
	p := Problem{Message: "not YAML: " + text}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
	}
	return &ValidationError{Problems: []Problem{p}}
}

type position struct{ line, column int }

// decoder turns nodes into a Topology and remembers where every path stands.
type decoder struct {
	positions map[string]position
	problems  []Problem
	nodes     int
}

func (d *decoder) failf(n *yaml.Node, path, format string, args ...any) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, Problem{Path: path, Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...)})
	}
}

// failed tells whether the value at path, or one that contains it, could not be
// read: what the rules say about it would only repeat that.
func (d *decoder) failed(path string) bool {
	for _, p := range d.problems {
		if p.Path == path || p.Path != "" && strings.HasPrefix(path, p.Path) && strings.ContainsRune(".[", rune(path[len(p.Path)])) {
			return true
		}
	}
	return false
}

// locate gives a problem the position of its path, or of the nearest value
// around it that is written down.
func (d *decoder) locate(p Problem) Problem {
	for path := p.Path; ; {
		if pos, ok := d.positions[path]; ok {
			p.Line, p.Column = pos.line, pos.column
			return p
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			p.Line, p.Column = 1, 1
			return p
		}
		path = path[:cut]
	}
}

// maxNodes bounds the work that nested aliases can make.
const maxNodes = 100_000

// resolve follows an alias to its anchor. Every value passes through it once.
func (d *decoder) resolve(n *yaml.Node, path string) (*yaml.Node, bool) {
	d.nodes++
	if d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.failf(n, path, "more than %d values with all aliases written out; split the file", maxNodes)
		}
		return nil, false
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias, true
	}
	return n, true
}

// field reads the value of one key.
type field func(n *yaml.Node, path string)

// mapping reads a mapping with the fields it may have.
func (d *decoder) mapping(n *yaml.Node, path string, fields map[string]field) {
	n, ok := d.resolve(n, path)
	if !ok {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.failf(n, path, "expected a mapping with the keys %s; got %s", strings.Join(sortedKeys(fields), ", "), describeNode(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := joinPath(path, key.Value)
		if key.Kind != yaml.ScalarNode {
			d.failf(key, path, "expected a key, got %s", describeNode(key))
			continue
		}
		if line, ok := seen[key.Value]; ok {
			d.failf(key, at, "the key %q already stands in line %d; remove one", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		read, ok := fields[key.Value]
		switch {
		case ok:
			d.positions[at] = position{value.Line, value.Column}
			read(value, at)
		case key.Value == "<<":
			d.failf(key, at, "merge keys are not supported; write the fields out, or use an alias for a whole value")
		default:
			d.failf(key, at, "unknown key %q; expected one of %s", clip(key.Value), strings.Join(sortedKeys(fields), ", "))
		}
	}
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// list reads a list; an empty value is an empty list.
func (d *decoder) list(n *yaml.Node, path string, item field) {
	n, ok := d.resolve(n, path)
	if !ok || isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.failf(n, path, "expected a list (each item begins with \"- \"), got %s", describeNode(n))
		return
	}
	for i, c := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.positions[at] = position{c.Line, c.Column}
		item(c, at)
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describeNode says in words what a node is.
func describeNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	case yaml.ScalarNode:
	default:
		return "nothing"
	}
	v := clip(n.Value)
	if strings.Contains(n.Value, "://") { // a URL at a wrong place may hold a password
		v = "(a URL)"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "the boolean " + v
	case "!!int", "!!float":
		return "the number " + v
	case "!!timestamp":
		return "the date " + v
	case "!!str":
		return fmt.Sprintf("the text %q", v)
	}
	return fmt.Sprintf("%q with the tag %s", v, clip(n.ShortTag()))
}
