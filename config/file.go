package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// file is what a YAML document says about the settings, by path and not yet
// read as what they are.
type file struct {
	values   map[string]fileValue
	previous int // items of delay.previous
	// topology is the document with the settings' sections left out of account,
	// and the environment put into its values.
	topology *yaml.Node
	problems []Problem

	overridden func(path string) bool
	expanded   map[*yaml.Node]bool // an anchor may be reached twice
}

type fileValue struct {
	texts        []string
	line, column int
}

// topologyKeys are the sections that package topology reads.
var topologyKeys = []string{"exchanges", "queues", "bindings", "destinations"}

// readFile takes a document apart. Values that are overridden are not expanded,
// so that a variable that only they refer to need not be set.
func readFile(data []byte, overridden func(path string) bool) *file {
	f := &file{values: map[string]fileValue{}, overridden: overridden, expanded: map[*yaml.Node]bool{}}
	root := f.document(data)
	if root == nil || isNull(root) {
		return f
	}
	if root.Kind != yaml.MappingNode {
		f.failf(root, "", "expected a mapping with the keys %s; got %s", strings.Join(append(sections(), topologyKeys...), ", "), describeKind(root))
		return f
	}
	f.topology = root
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		switch {
		case slices.Contains(sections(), key.Value):
			f.mapping(value, key.Value, settingsUnder(key.Value))
		case slices.Contains(topologyKeys, key.Value):
			f.expandTree(value, key.Value)
		}
	}
	return f
}

// sections are the top-level keys of the settings.
func sections() []string {
	var keys []string
	for _, s := range settings {
		key, _, _ := strings.Cut(s.path, ".")
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// settingsUnder maps the paths below a section to whether they take a list.
func settingsUnder(section string) map[string]bool {
	paths := map[string]bool{}
	for _, s := range settings {
		if strings.HasPrefix(s.path, section+".") {
			paths[s.path] = isList(s.field(&Config{}))
		}
	}
	return paths
}

func (f *file) failf(n *yaml.Node, path, format string, args ...any) {
	f.problems = append(f.problems, Problem{
		Path: path, Origin: lineOrigin(n.Line, n.Column), Message: fmt.Sprintf(format, args...),
		line: n.Line, column: n.Column,
	})
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// document is the root of the only document; nil for an empty one.
func (f *file) document(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	syntax := func(err error) *yaml.Node {
		text := strings.TrimPrefix(err.Error(), "yaml: ")
		p := Problem{}
		if m := yamlLine.FindStringSubmatch(text); m != nil {
			p.line, _ = strconv.Atoi(m[1])
			text = strings.TrimPrefix(text, m[0]+": ")
		}
		if strings.HasPrefix(text, "unknown anchor") { // which it quotes, and which may be a password
			text = "an alias (a value that begins with *) without its anchor; put the value in quotes if it is none"
		}
		p.Message = "not YAML: " + text
		p.Origin = lineOrigin(p.line, 0)
		f.problems = append(f.problems, p)
		return nil
	}
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return syntax(err)
	}
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return syntax(err)
	default:
		f.failf(&second, "", "a second document begins here; put everything into one")
		return nil
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// mapping reads a mapping at path, of which paths says what may stand below it.
func (f *file) mapping(n *yaml.Node, path string, paths map[string]bool) {
	n = resolve(n)
	if isNull(n) {
		return
	}
	keys := keysUnder(path, paths)
	if n.Kind != yaml.MappingNode {
		f.failf(n, path, "expected a mapping with the keys %s; got %s", strings.Join(keys, ", "), describeKind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			f.failf(key, path, "expected a key, got %s", describeKind(key))
			continue
		}
		at := path + "." + clip(key.Value)
		if line, ok := seen[key.Value]; ok {
			f.failf(key, at, "the key %q already stands in line %d; remove one", clip(key.Value), line)
			continue
		}
		seen[key.Value] = key.Line
		list, leaf := paths[at]
		switch {
		case at == previousPath:
			f.previousLayouts(value)
		case leaf && list:
			f.list(value, at)
		case leaf:
			f.scalar(value, at)
		case slices.Contains(keys, key.Value):
			f.mapping(value, at, paths)
		case key.Value == "<<":
			f.failf(key, at, "merge keys are not supported; write the fields out")
		default:
			f.failf(key, at, "unknown key %q; expected one of %s", clip(key.Value), strings.Join(keys, ", "))
		}
	}
}

// keysUnder lists the keys of the mapping at path.
func keysUnder(path string, paths map[string]bool) []string {
	var keys []string
	add := func(p string) {
		rest, ok := strings.CutPrefix(p, path+".")
		if !ok {
			return
		}
		key, _, _ := strings.Cut(rest, ".")
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for p := range paths {
		add(p)
	}
	add(previousPath)
	slices.Sort(keys)
	return keys
}

func (f *file) previousLayouts(n *yaml.Node) {
	n = resolve(n)
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		f.failf(n, previousPath, "expected a list of layouts, got %s", describeKind(n))
		return
	}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", previousPath, i)
		paths := map[string]bool{}
		for _, s := range previousSettings(at, &Layout{}) {
			paths[s.path] = isList(s.field(nil))
		}
		f.values[at] = fileValue{line: item.Line, column: item.Column}
		f.mapping(item, at, paths)
		f.previous++
	}
}

func (f *file) scalar(n *yaml.Node, path string) {
	if text, ok := f.text(n, path); ok {
		f.values[path] = fileValue{[]string{text}, n.Line, n.Column}
	}
}

func (f *file) list(n *yaml.Node, path string) {
	items := resolve(n)
	if items.Kind != yaml.SequenceNode {
		f.failf(n, path, "expected a list, got %s", describeKind(items))
		return
	}
	v := fileValue{line: n.Line, column: n.Column, texts: []string{}}
	for i, item := range items.Content {
		text, ok := f.text(item, fmt.Sprintf("%s[%d]", path, i))
		if !ok {
			return
		}
		v.texts = append(v.texts, text)
	}
	f.values[path] = v
}

// text is a single value, with the environment put into it.
func (f *file) text(n *yaml.Node, path string) (string, bool) {
	value := resolve(n)
	switch {
	case f.overridden(path):
		return "", true
	case value.Kind != yaml.ScalarNode:
		f.failf(n, path, "expected a single value, got %s", describeKind(value))
		return "", false
	case isNull(value):
		f.failf(n, path, "has no value; give one, or remove the key")
		return "", false
	}
	if f.expanded[value] {
		return value.Value, true
	}
	text, err := expand(value.Value)
	if err != nil {
		f.failf(n, path, "%v", err)
		return "", false
	}
	return text, true
}

// expandTree puts the environment into every value below n. An unquoted value is
// read afterwards as if what came out stood there, a quoted one stays text.
func (f *file) expandTree(n *yaml.Node, path string) {
	n = resolve(n)
	if f.expanded[n] {
		return
	}
	f.expanded[n] = true
	switch n.Kind {
	case yaml.ScalarNode:
		text, err := expand(n.Value)
		if err != nil {
			f.failf(n, path, "%v", err)
			return
		}
		if text != n.Value {
			n.Value = text
			if n.Style == 0 {
				n.Tag = "" // to be found again
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			f.expandTree(n.Content[i+1], path+"."+clip(n.Content[i].Value))
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			f.expandTree(item, fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describeKind says what a node is, and not what it contains, which may be a
// password.
func describeKind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	}
	return "a single value"
}
