package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/viper"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// Source says where Load reads from, beside the environment.
type Source struct {
	// File is the path of the YAML file; empty for none.
	File string
	// Overrides are values of settings that win over all others, by path, such as
	// "broker.url".
	Overrides map[string]Override
	// Defaults are values by path that all other sources override; lists are
	// separated by commas.
	Defaults map[string]string
}

// Override is the value of a setting with a name for where it came from, which
// errors print: "--url".
type Override struct {
	Value  string
	Origin string
}

// FileVariable is the environment variable that names the YAML file for the
// commands, as their flag -f does. Load does not read it.
const FileVariable = envPrefix + "_FILE"

// Load reads the settings and validates them. An environment variable that is set
// and empty counts as not set; a flag or a value of the file that is empty is an
// error. Every problem is reported, with
// the place the value came from, in one *Error.
func Load(src Source) (*Config, error) {
	var data []byte
	if src.File != "" {
		var err error
		if data, err = os.ReadFile(src.File); err != nil {
			if pe, ok := errors.AsType[*fs.PathError](err); ok {
				err = pe.Err
			}
			return nil, &Error{File: src.File, Problems: []Problem{{Message: "cannot be read: " + err.Error()}}}
		}
	}
	return load(data, src)
}

func load(data []byte, src Source) (*Config, error) {
	l := &loader{
		src: src, v: viper.New(),
		c: &Config{file: src.File, origins: yamldoc.Places{}},
	}
	l.layers(data)
	l.read()
	l.reconcile()
	l.topology()
	l.c.setDefaults()
	problems := &l.file.Problems
	problems.Add(l.c.problems(), l.c.origins)
	if len(*problems) > 0 {
		problems.Sort()
		return nil, &Error{File: src.File, Problems: *problems}
	}
	return l.c, nil
}

type loader struct {
	src  Source
	v    *viper.Viper
	file *file // and the problems of all sources
	c    *Config
}

// layers gives viper the file, the environment and the overrides.
func (l *loader) layers(data []byte) {
	known := map[string]bool{FileVariable: true}
	for _, s := range settings {
		name := variable(s.path)
		known[name] = true
		_ = l.v.BindEnv(s.path, name) // fails without a key only
		if o, ok := l.src.Overrides[s.path]; ok {
			l.v.Set(s.path, o.Value)
		}
	}
	for path, value := range l.src.Defaults {
		l.v.SetDefault(path, value)
	}
	if url := os.Getenv("AMQP_URL"); url != "" {
		l.v.SetDefault("broker.url", url)
		l.c.origins["broker.url"] = yamldoc.Place{Origin: "AMQP_URL"}
	}
	l.file = readFile(data, func(path string) bool { return l.above(path) != "" })
	l.unknownVariables(known)

	tree := map[string]any{}
	for path, texts := range l.file.values {
		if !strings.HasPrefix(path, previousPath) {
			insert(tree, strings.Split(path, "."), texts)
		}
	}
	if err := l.v.MergeConfigMap(tree); err != nil {
		l.file.Problems.Addf(yamldoc.Place{}, "", "%v", err)
	}
}

// insert puts a value into nested maps.
func insert(tree map[string]any, keys, value []string) {
	if len(keys) == 1 {
		tree[keys[0]] = value
		return
	}
	below, ok := tree[keys[0]].(map[string]any)
	if !ok {
		below = map[string]any{}
		tree[keys[0]] = below
	}
	insert(below, keys[1:], value)
}

// unknownVariables finds what looks like a setting and is none: a misspelt
// override would go unnoticed.
func (l *loader) unknownVariables(known map[string]bool) {
	names := slices.Sorted(maps.Keys(known))
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix+"_") || known[name] || serviceVariable(name, value) {
			continue
		}
		// Other programs of ours have variables that settings begin with.
		longer := func(setting string) bool { return strings.HasPrefix(setting, name) }
		meant := DidYouMean(name, slices.DeleteFunc(slices.Clone(names), longer))
		inSection := slices.ContainsFunc(sections(), func(s string) bool { return strings.HasPrefix(name, variable(s)+"_") })
		if inSection || meant != "" {
			l.file.Problems.Addf(yamldoc.Place{Origin: name}, "", "no setting has this environment variable; `rabbitdelay settings` lists them%s", meant)
		}
	}
}

// service matches the variables that Kubernetes puts into every container for a
// Service, and Docker for a link, which may well be called rabbitdelay-broker.
var service = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$`)

// serviceVariable tells whether a variable was injected for a service. Its plain
// …_PORT is an address, such as tcp://10.0.0.1:5672, and no number that somebody
// may have taken for a setting.
func serviceVariable(name, value string) bool {
	if strings.HasSuffix(name, "_PORT") {
		protocol, _, ok := strings.Cut(value, "://")
		return ok && slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) || service.MatchString(name)
	}
	return service.MatchString(name)
}

// above names what wins over the file for a setting; empty for nothing.
func (l *loader) above(path string) string {
	path, _, _ = strings.Cut(path, "[")
	if o, ok := l.src.Overrides[path]; ok {
		return o.Origin
	}
	if name := variable(path); os.Getenv(name) != "" {
		return name
	}
	return ""
}

// read turns the texts that viper chose into values.
func (l *loader) read() {
	for _, s := range settings {
		var texts []string
		switch v := l.v.Get(s.path).(type) {
		case []string:
			texts = v
		case string:
			texts = []string{v}
			if isList(s.field(l.c)) {
				texts = strings.Split(v, ",")
			}
		default:
			continue
		}
		l.assign(s, texts)
	}
	l.c.Delay.Previous = make([]Previous, l.file.previous)
	for i := range l.c.Delay.Previous {
		item := fmt.Sprintf("%s[%d]", previousPath, i)
		l.c.origins[item] = l.file.Places[item]
		for _, s := range previousSettings(item, &l.c.Delay.Previous[i]) {
			if texts, ok := l.file.values[s.path]; ok {
				l.assign(s, texts)
			}
		}
	}
}

// assign gives a setting its value, and remembers where that came from.
func (l *loader) assign(s setting, texts []string) {
	place := yamldoc.Place{Origin: l.above(s.path)}
	if _, ok := l.file.values[s.path]; ok && place.Origin == "" {
		place = l.file.Places[s.path]
	}
	given := place != yamldoc.Place{}
	if given {
		l.c.origins[s.path] = place
	}
	if err := assign(s.field(l.c), texts, given); err != nil {
		l.file.Problems.Addf(place, s.path, "%v", err)
	}
}

// topology checks what stands in the file beside the settings.
func (l *loader) topology() {
	l.c.Topology, l.c.Schedules = l.file.topology, l.file.schedules
	err := l.c.Topology.Validate(topology.DelayPrefix(cmp.Or(l.c.Delay.Prefix, topology.DefaultPrefix)))
	if ve, ok := errors.AsType[*topology.ValidationError](err); ok {
		l.file.Problems.Add(ve.Problems, l.file.Places)
	}
}
