package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// file is the content of a YAML document.
type file struct {
	*yamldoc.Reader
	values    map[string][]string  // values of the settings by path, not yet parsed; a list has several
	previous  int                  // number of items in delay.previous
	topology  topology.Topology    // not yet validated
	schedules []schedule.Recurring // each validated

	overridden func(path string) bool
}

// readFile reads a document. It does not expand overridden values, so that variables that are only used in them need
// not be set.
func readFile(data []byte, overridden func(path string) bool) *file {
	f := &file{Reader: yamldoc.Parse(data), values: map[string][]string{}, overridden: overridden}
	f.Known, f.Hidden = shape, ofSettings // the values of settings may be passwords, so problems do not quote them
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

// keys returns functions that read the top-level keys of a document.
func (f *file) keys() map[string]yamldoc.Field {
	fields := f.fields("", settings)
	maps.Copy(fields, topology.YAMLFields(f.Reader, &f.topology))
	fields[schedulesKey] = func(n *yaml.Node, path string) { f.List(n, path, f.schedule) }
	return fields
}

// ofSettings reports whether a path belongs to a setting, or is the empty path of the whole document. It is false for
// paths in the topology.
func ofSettings(path string) bool {
	section, _, _ := strings.Cut(path, ".")
	return path == "" || slices.Contains(sections, section)
}

// sections are the top-level keys of the settings.
var sections = func() (keys []string) {
	for _, s := range settings {
		key, _, _ := strings.Cut(s.path, ".")
		keys = append(keys, key)
	}
	return slices.Compact(keys)
}()

// fields returns functions that read the keys of the mapping at prefix.
func (f *file) fields(prefix string, list []setting) map[string]yamldoc.Field {
	fields := map[string]yamldoc.Field{}
	for _, s := range list {
		rest, ok := strings.CutPrefix(s.path, prefix)
		key, _, nested := strings.Cut(rest, ".")
		switch {
		case !ok:
		case nested:
			fields[key] = func(n *yaml.Node, path string) { f.section(n, path, list) }
		default:
			_, kind := typeOf(s.field)
			read := f.kind(kind, f.scalar)
			if kind == yamldoc.List {
				read = f.list
			}
			fields[key] = func(n *yaml.Node, path string) {
				if s.help != "" {
					f.Explain(s.meaning(), s.byDefault())
				}
				read(n, path)
			}
		}
	}
	if key, ok := strings.CutPrefix(previousPath, prefix); ok && prefix != "" {
		fields[key] = func(n *yaml.Node, path string) {
			f.List(n, path, func(n *yaml.Node, path string) {
				f.section(n, path, previousSettings(path, &Previous{}))
				f.previous++
			})
		}
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

// kind returns a function that reads a value, or describes its kind for the schema.
func (f *file) kind(k yamldoc.Kind, read yamldoc.Field) yamldoc.Field {
	return func(n *yaml.Node, path string) {
		if !f.Describing(k) {
			read(n, path)
		}
	}
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

// text returns the text of a scalar value, or an empty text if another source overrides the value. The second result is
// false if the node is not a valid scalar.
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

// schedulesKey is the key of the list of recurring tasks. They can only be set in the file.
const schedulesKey = "schedules"

// schedule reads a recurring task. It validates the combination of values after it has read all of them.
func (f *file) schedule(n *yaml.Node, path string) {
	r := schedule.Recurring{}
	t := &r.Task
	before := len(f.Problems)
	keys := map[string]yamldoc.Field{
		"name":          f.textTo(&r.Name),
		"cron":          f.textTo(&r.Cron),
		"time_zone":     f.textTo(&r.TimeZone),
		"every":         f.parsed(func(s string) (err error) { r.Every, err = topology.ParseDuration(s); return err }),
		"start":         f.parsed(func(s string) (err error) { r.Start, err = parseInstant(s); return err }),
		"end":           f.parsed(func(s string) (err error) { r.End, err = parseInstant(s); return err }),
		"jitter":        f.parsed(func(s string) (err error) { r.Jitter, err = topology.ParseDuration(s); return err }),
		"misfire":       f.textTo((*string)(&r.Misfire)),
		"misfire_limit": f.parsed(func(s string) (err error) { r.MisfireLimit, err = parseInt(s); return err }),
		"overlap":       f.textTo((*string)(&r.Overlap)),
		"queue":         f.textTo(&t.Queue),
		"exchange":      f.textTo(&t.Exchange),
		"routing_key":   f.textTo(&t.RoutingKey),
		"body":          f.parsed(func(s string) error { t.Body = []byte(s); return nil }),
		"headers":       f.headers(t),
		"tags":          func(n *yaml.Node, p string) { f.List(n, p, f.appendTo(&t.Tags)) },
	}
	for _, p := range taskview.Properties {
		keys[p.Key] = f.parsed(func(s string) error { return p.Set(t, s) })
	}
	f.Mapping(n, path, keys)
	f.schedules = append(f.schedules, r)
	if len(f.Problems) > before {
		return
	}
	bad := func(field, format string, args ...any) {
		at := path + "." + field
		place, ok := f.Places[at]
		if !ok {
			place = f.Places[path]
		}
		f.Problems.Addf(place, at, format, args...)
	}
	for _, err := range unjoined(r.Validate()) {
		se, ok := errors.AsType[*schedule.RecurringError](err)
		if !ok {
			continue
		}
		bad(snake(se.Field), "%s", se.Reason)
	}
	for i := range f.schedules[:len(f.schedules)-1] {
		if f.schedules[i].Name == r.Name {
			bad("name", "%q is also the name of schedules[%d]", yamldoc.Clip(r.Name), i)
		}
	}
}

// parsed returns a function that reads a scalar value with read.
func (f *file) parsed(read func(string) error) yamldoc.Field {
	return f.kind(yamldoc.Scalar, func(n *yaml.Node, path string) {
		if text, ok := f.text(n, path); ok {
			if err := read(text); err != nil {
				f.Failf(n, path, "%v", err)
			}
		}
	})
}

func (f *file) textTo(dst *string) yamldoc.Field {
	return f.parsed(func(s string) error { *dst = s; return nil })
}

func (f *file) appendTo(dst *[]string) yamldoc.Field {
	return f.parsed(func(s string) error { *dst = append(*dst, s); return nil })
}

func (f *file) headers(t *schedule.Task) yamldoc.Field {
	return f.kind(yamldoc.Table, func(n *yaml.Node, path string) {
		if n.Kind != yaml.MappingNode {
			f.Expected(n, path, "a mapping of names to texts")
			return
		}
		t.Headers = map[string]string{}
		f.Entries(n, path, func(key, value *yaml.Node, at string) {
			f.Value(value, at, f.parsed(func(s string) error { t.Headers[key.Value] = s; return nil }))
		})
	})
}

func parseInstant(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("expected a time such as 2026-01-31T08:00:00Z, got %q", yamldoc.Clip(s))
	}
	return t, nil
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

var errExpansion = errors.New("expected ${NAME} or ${NAME:-value}, where NAME consists of letters, digits and underscores; write $${ for a literal ${")

// expand replaces references to environment variables in a value. References in the variables' own values are not
// expanded.
func expand(value string) (string, error) {
	if !strings.Contains(value, "${") {
		return value, nil
	}
	var b strings.Builder
	for {
		at := strings.Index(value, "${")
		if at < 0 {
			b.WriteString(value)
			return b.String(), nil
		}
		if at > 0 && value[at-1] == '$' { // $${ stands for a literal ${
			b.WriteString(value[:at-1] + "${")
			value = value[at+2:]
			continue
		}
		b.WriteString(value[:at])
		reference, rest, ok := strings.Cut(value[at+2:], "}")
		if !ok {
			return "", errExpansion
		}
		name, fallback, hasFallback := strings.Cut(reference, ":-")
		if !variableName.MatchString(name) {
			return "", errExpansion
		}
		content, set := os.LookupEnv(name)
		switch {
		case hasFallback && content == "":
			content = fallback
		case !set:
			return "", fmt.Errorf("the environment variable %s is not set; set it, or write ${%s:-value}", name, name)
		}
		b.WriteString(content)
		value = rest
	}
}
