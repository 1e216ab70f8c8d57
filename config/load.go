package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/viper"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Source contains the sources that Load reads in addition to the environment.
type Source struct {
	// File is the path of the YAML file. It is empty if there is no file.
	File string
	// Overrides are values that take precedence over all other sources, by the setting's path, such as "broker.url".
	Overrides map[string]Override
	// Defaults are values over which all other sources take precedence, by the setting's path. Items of a list are
	// separated by commas.
	Defaults map[string]string
}

// Override is the value of a setting and the name of its source, such as "--url", which errors mention.
type Override struct {
	Value  string
	Origin string
}

// FileVariable is the environment variable that contains the path of the YAML file, if the path is not given by the
// program's flag -f. Load does not read this variable; the program passes the path in Source.File.
const FileVariable = envPrefix + "_FILE"

// Load reads and validates the settings. An empty environment variable counts as unset, but an empty flag or an empty
// value in the file is an error. It reports all problems in one *Error, each with the place of its value.
func Load(src Source) (*Config, error) {
	var data []byte
	if src.File != "" {
		var err error
		if data, err = os.ReadFile(src.File); err != nil {
			return nil, &Error{File: src.File, Problems: []topology.Problem{{Message: "cannot be read: " + reason(err)}}}
		}
	}
	return load(data, src)
}

func load(data []byte, src Source) (*Config, error) {
	l := &loader{
		src: src, v: viper.NewWithOptions(viper.KeyDelimiter("\x00")), // a separator that no path contains, so that paths are viper's keys
		c: &Config{file: src.File, origins: yamldoc.Places{}},
	}
	l.layers(data)
	if src.File != "" && l.file.Empty() {
		keys := slices.Sorted(maps.Keys(l.file.keys()))
		l.file.Problems.Addf(yamldoc.Place{}, "", "the file is empty or has only comments; expected at least one of the keys %s, or {} for a file without settings", strings.Join(keys, ", "))
	}
	l.read()
	l.reconcile()
	l.topology()
	l.c.setDefaults()
	problems := &l.file.Problems
	places := maps.Clone(l.c.origins)
	for path, place := range l.file.Places { // add the places of values that only the file can set; a setting may come from another source
		if strings.HasPrefix(path, "destinations[") || strings.HasPrefix(path, schedulesKey+"[") {
			places[path] = place
		}
	}
	problems.Add(l.c.problems(), places)
	if len(*problems) > 0 {
		problems.Sort()
		return nil, failed(src.File, *problems)
	}
	return l.c, nil
}

// ErrConfig is wrapped by every *Error.
var ErrConfig = errors.New("invalid configuration")

// Error lists up to 100 problems in a configuration.
type Error struct {
	File string // empty if there is no file
	// Problems name the setting's path, such as delay.bucket.resolution, the source of its value, and the expected value.
	// They never contain a URL.
	Problems []topology.Problem
}

func failed(file string, found yamldoc.Problems) *Error {
	e := &Error{File: file}
	for _, p := range found {
		e.Problems = append(e.Problems, topology.Problem(p))
	}
	return e
}

func (e *Error) Error() string {
	text := found(e.Problems).String()
	if e.File != "" {
		text = e.File + ": " + text
	}
	return text
}

// Unwrap makes errors.Is(err, ErrConfig) true.
func (e *Error) Unwrap() error { return ErrConfig }

// found converts problems to the type in which they are collected.
func found(list []topology.Problem) yamldoc.Problems {
	out := make(yamldoc.Problems, len(list))
	for i, p := range list {
		out[i] = yamldoc.Problem(p)
	}
	return out
}

type loader struct {
	src  Source
	v    *viper.Viper
	file *file // with the problems of all sources
	c    *Config
}

// rank is the precedence of a source. The value with the highest rank is used.
type rank int

const (
	byDefault rank = iota
	byFile
	byVariable
	byFlag
)

// given is a value with its source. Values from all layers of viper have this type, except values from the environment,
// which viper itself reads as strings. A string from viper therefore comes from the environment.
type given struct {
	rank  rank
	texts []string
	place yamldoc.Place
}

// value returns the value that viper chooses for a setting.
func (l *loader) value(path string) (given, bool) {
	switch v := l.v.Get(path).(type) {
	case given:
		return v, true
	case string:
		name := variable(path)
		return given{byVariable, []string{v}, yamldoc.Place{Origin: name}}, true
	}
	return given{}, false
}

// layers passes the overrides, the environment, the file and the defaults to viper.
func (l *loader) layers(data []byte) {
	known := map[string]bool{FileVariable: true}
	for _, s := range settings {
		name := variable(s.path)
		known[name] = true
		_ = l.v.BindEnv(s.path, name) // BindEnv fails only without a key
		if o, ok := l.src.Overrides[s.path]; ok {
			l.v.Set(s.path, given{byFlag, []string{o.Value}, yamldoc.Place{Origin: o.Origin}})
		}
	}
	for path, value := range l.src.Defaults {
		l.v.SetDefault(path, given{texts: []string{value}})
	}
	if url := os.Getenv("AMQP_URL"); url != "" {
		l.v.SetDefault("broker.url", given{byDefault, []string{url}, yamldoc.Place{Origin: "AMQP_URL"}})
	}
	l.file = readFile(data, func(path string) bool { // the file's values are not in viper yet, so a higher rank means that a flag or a variable sets the path
		path, _, _ = strings.Cut(path, "[")
		g, _ := l.value(path)
		return g.rank > byFile
	})
	l.unknownVariables(known)
	values := map[string]any{}
	for path, texts := range l.file.values {
		values[path] = given{byFile, texts, l.file.Places[path]}
	}
	if err := l.v.MergeConfigMap(values); err != nil {
		l.file.Problems.Addf(yamldoc.Place{}, "", "%v", err)
	}
}

// unknownVariables reports environment variables that begin with envPrefix but belong to no setting. Without this
// check, a misspelt variable would go unnoticed.
func (l *loader) unknownVariables(known map[string]bool) {
	names, parts := slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(l.file.keys()))
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix+"_") || known[name] || serviceVariable(name, value) || development.MatchString(name) {
			continue
		}
		if slices.ContainsFunc(parts, func(key string) bool {
			return name == variable(key) || !slices.Contains(sections, key) && strings.HasPrefix(name, variable(key)+"_")
		}) {
			l.file.Problems.Addf(yamldoc.Place{Origin: name}, "", "this part of the file is not a setting and has no environment variable; `rabbitdelay settings` lists the variables")
			continue
		}
		l.file.Problems.Addf(yamldoc.Place{Origin: name}, "", "no setting has this environment variable; `rabbitdelay settings` lists the variables%s", naming.DidYouMean(name, names))
	}
}

// development matches the variables of this project's tests and builds. They may be set in a developer's shell and are
// not misspelt settings.
var development = regexp.MustCompile("^" + envPrefix + "_(TEST_.*|SKIP_INTEGRATION|START_BROKER|(MANAGEMENT|POSTGRES|MARIADB|MYSQL)_URL|PLUGIN_DIR|NEXT_IMAGE|IMAGES" +
	"|CONFORMANCE_TABLE|FAKETIME|FAULTS_CONSUMER|SIMULATE_(CHILD|SEEDS)|TIER_SAMPLE)$")

// service matches the variables that Kubernetes sets in every container for each Service, and Docker for each link.
// They look like settings if the service has a name such as rabbitdelay-broker.
var service = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$|^RABBITDELAY_([A-Z0-9_]+_)?ENV_`)

// serviceVariable reports whether Kubernetes or Docker has set a variable for a service. The variable …_PORT of a
// service is an address, such as tcp://10.0.0.1:5672. If it is a number, the user may have meant it as a setting. The
// variable …_NAME of a Docker link is a path, such as /app/rabbitdelay.
func serviceVariable(name, value string) bool {
	if strings.HasSuffix(name, "_PORT") {
		protocol, _, ok := strings.Cut(value, "://")
		return ok && slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) || service.MatchString(name)
	}
	return service.MatchString(name) || strings.HasSuffix(name, "_NAME") && strings.HasPrefix(value, "/")
}

// read parses the values that viper chose and assigns them to the settings.
func (l *loader) read() {
	for _, s := range settingsOf(l.c) {
		g, ok := l.value(s.path)
		if !ok {
			continue
		}
		if _, kind := typeOf(s.field); kind == yamldoc.List && g.rank != byFile {
			g.texts = strings.Split(g.texts[0], ",")
		}
		l.assign(s, g)
	}
	l.c.Delay.Previous = make([]Previous, l.file.previous)
	for i := range l.c.Delay.Previous {
		item := fmt.Sprintf("%s[%d]", previousPath, i)
		l.c.origins[item] = l.file.Places[item]
		for _, s := range previousSettings(item, &l.c.Delay.Previous[i]) {
			if texts, ok := l.file.values[s.path]; ok {
				l.assign(s, given{byFile, texts, l.file.Places[s.path]})
			}
		}
	}
}

// assign sets the value of a setting, and records its place.
func (l *loader) assign(s setting, g given) {
	written := g.place != yamldoc.Place{}
	if written {
		l.c.origins[s.path] = g.place
	}
	if err := parse(s.field, g.texts, written); err != nil {
		l.file.Problems.Addf(g.place, s.path, "%v", err)
	}
}

// topology copies the topology and the recurring tasks from the file, and validates the topology. The recurring tasks
// were validated when the file was read.
func (l *loader) topology() {
	l.c.Topology, l.c.Schedules = l.file.topology, l.file.schedules
	err := l.c.Topology.Validate(topology.DelayPrefix(cmp.Or(l.c.Delay.Prefix, topology.DefaultPrefix)))
	if ve, ok := errors.AsType[*topology.ValidationError](err); ok {
		l.file.Problems.Add(found(ve.Problems), l.file.Places)
	}
}
