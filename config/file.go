package config

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// file is the content of a YAML document.
type file struct {
	*yamldoc.Reader
	values    map[string][]string  // of the settings by path, not yet read as what they are
	previous  int                  // items of delay.previous
	topology  topology.Topology    // not yet validated
	schedules []schedule.Recurring // each validated

	overridden func(path string) bool
}

// readFile takes a document apart. Overridden values are not expanded, so that variables to which
// only they refer need not be set.
func readFile(data []byte, overridden func(path string) bool) *file {
	f := &file{Reader: yamldoc.Parse(data), values: map[string][]string{}, overridden: overridden}
	f.Hidden = ofSettings // which may be passwords
	f.Expand = func(path, text string) (string, error) {
		setting := ofSettings(path)
		if setting && overridden(path) {
			return text, nil
		}
		value, err := expand(text)
		if setting && err == nil && value == "" && text != "" {
			err = errEmpty
		}
		return value, err
	}
	f.Document(f.keys())
	return f
}

// keys read the keys of a document.
func (f *file) keys() map[string]yamldoc.Field {
	fields := f.fields("", settings)
	maps.Copy(fields, topology.YAMLFields(f.Reader, &f.topology))
	fields[schedulesKey] = func(n *yaml.Node, path string) { f.List(n, path, f.schedule) }
	return fields
}

// ofSettings reports whether a path leads to a setting, or is that of the document, rather than
// into the topology.
func ofSettings(path string) bool {
	section, _, _ := strings.Cut(path, ".")
	return path == "" || slices.Contains(sections(), section)
}

// sections returns the top-level keys of the settings.
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

// fields read the keys of the mapping whose settings' paths begin with prefix.
func (f *file) fields(prefix string, list []setting) map[string]yamldoc.Field {
	fields := map[string]yamldoc.Field{}
	for _, s := range list {
		rest, ok := strings.CutPrefix(s.path, prefix)
		key, _, nested := strings.Cut(rest, ".")
		switch {
		case !ok:
		case nested:
			fields[key] = func(n *yaml.Node, path string) { f.section(n, path, list) }
		case isList(s.field(&Config{})):
			fields[key] = f.setting(s, f.list)
		default:
			fields[key] = f.setting(s, f.scalar)
		}
	}
	if key, ok := strings.CutPrefix(previousPath, prefix); ok && prefix != "" {
		fields[key] = func(n *yaml.Node, path string) { f.List(n, path, f.previousLayout) }
	}
	return fields
}

// section reads a mapping of settings, which may be empty.
func (f *file) section(n *yaml.Node, path string, list []setting) {
	f.MayBeNull()
	if !yamldoc.IsNull(n) {
		f.Mapping(n, path, f.fields(path+".", list))
	}
}

func (f *file) previousLayout(n *yaml.Node, path string) {
	f.section(n, path, previousSettings(path, &Previous{}))
	f.previous++
}

// setting reads a setting, or describes it.
func (f *file) setting(s setting, read yamldoc.Field) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if s.help != "" {
			f.Explain(s.meaning(), s.byDefault())
		}
		f.kind(kindOf(s.field(&Config{})), read)(n, path)
	}
}

// kind reads a value, or describes its kind.
func (f *file) kind(k yamldoc.Kind, read yamldoc.Field) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if k == yamldoc.List || !f.Describing(k) {
			read(n, path)
		}
	}
}

func kindOf(field any) yamldoc.Kind {
	switch field.(type) {
	case *bool:
		return yamldoc.Boolean
	case *int:
		return yamldoc.Integer
	case *time.Duration:
		return yamldoc.Duration
	}
	if isList(field) {
		return yamldoc.List
	}
	return yamldoc.Scalar
}

func (f *file) scalar(n *yaml.Node, path string) {
	if text, ok := f.text(n, path); ok {
		f.values[path] = []string{text}
	}
}

func (f *file) list(n *yaml.Node, path string) {
	if yamldoc.IsNull(n) {
		f.Failf(n, path, "%v", errEmpty)
		return
	}
	texts, readable := []string{}, n.Kind == yaml.SequenceNode
	f.List(n, path, f.kind(yamldoc.Scalar, func(n *yaml.Node, path string) {
		text, ok := f.text(n, path)
		texts = append(texts, text)
		readable = readable && ok
	}))
	if readable {
		f.values[path] = texts
	}
}

// text is a single value.
func (f *file) text(n *yaml.Node, path string) (string, bool) {
	switch {
	case f.overridden(path):
		return "", true
	case n.Kind != yaml.ScalarNode:
		f.Expected(n, path, "a single value")
	case yamldoc.IsNull(n):
		f.Failf(n, path, "%v", errEmpty)
	}
	return n.Value, !f.Problems.At(path)
}
