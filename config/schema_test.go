package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
)

var update = flag.Bool("update", false, "write docs/rabbitdelay.schema.json and docs/wire.json")

const schemaFile = "../docs/rabbitdelay.schema.json"

func TestSchemaFile(t *testing.T) {
	if *update {
		if err := os.WriteFile(schemaFile, Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, Schema()) {
		t.Error("docs/rabbitdelay.schema.json is out of date; run go test ./config -run TestSchemaFile -update")
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("rabbitdelay.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("rabbitdelay.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchemaAgreesWithTheLoader(t *testing.T) {
	t.Setenv("RD_TEST_PASSWORD", "x")
	t.Setenv("RD_TEST_QUEUE", "q")
	t.Setenv("RD_TEST_LENGTH", "1000")
	schema := compileSchema(t)
	for doc, ok := range map[string]bool{
		everything:                        true,
		"":                                true,
		"broker:\n":                       true,
		"broker: {uri: x}\n":              false,
		"brokers: {}\n":                   false,
		"broker: {max_in_flight: many}\n": false,
		"broker: {external_auth: 7}\n":    false,
		"broker: [1]\n":                   false,
		"delay: {previous: [{layout: hex, size: 1}]}\n":      false,
		"delay: {previous: [{layout: hex}]}\n":               true,
		"delay: {ttl: {delays: [soon]}}\n":                   true, // a value that only the loader can check
		"queues: [{name: q, message_ttl: 60}]\n":             false,
		"queues: [{name: q, message_ttl: 1h30m}]\n":          true,
		"queues: [{name: 5}]\n":                              false,
		"queues: [{name: q, arguments: {x: [1, {a: b}]}}]\n": true,
		"queues:\n":                         true,
		"x-note: {a: 1}\nx-max-length: 5\n": true,
		"broker: {x-note: 1}\n":             true,
		"delay: {x-a: [1], bucket: {x-b: {}}, previous: [{layout: hex, x-c: 1}]}\n":                     true,
		"destinations: [{queue: q, x-note: a, retry: {x-b: 1}, rate_limit: {per_second: 1, x-c: 1}}]\n": true,
		"destinations: [{queue: q, x-max-length: 5}]\n":                                                 false,
		"schedules: [{name: s, every: 1m, queue: q, body: b, x-note: a}]\n":                             true,
		"queues: [{name: q, x-note: a}]\n":                                                              false,
		"queues: [{name: q, arguments: {x-max-priority: 5}, type: classic}]\n":                          true,
		"exchanges: [{name: e, type: topic, x-note: a}]\n":                                              false,
		"bindings: [{exchange: e, queue: q, x-match: all}]\n":                                           false,
	} {
		var value any
		if err := yaml.Unmarshal([]byte(doc), &value); err != nil {
			t.Fatalf("converting to JSON: got %v, want no error, for\n%s", err, doc)
		}
		asJSON, err := json.Marshal(value) // a time becomes text, as for editors
		if err != nil {
			t.Fatalf("converting to JSON: got %v, want no error, for\n%s", err, doc)
		}
		if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON)); err != nil {
			t.Fatalf("converting to JSON: got %v, want no error, for\n%s", err, doc)
		}
		if err := schema.Validate(value); (err == nil) != ok {
			t.Errorf("validating with the schema: got %v, want an error: %t, for\n%s", err, !ok, doc)
		}
		if _, err := load([]byte(doc), Source{}); (err == nil) != ok && !strings.Contains(doc, "soon") {
			t.Errorf("loading: got %v, want an error: %t, for\n%s", err, !ok, doc)
		}
	}
}

// Each mapping in the schema has exactly the keys that the loader accepts there. The loader lists these in its error
// about an unknown key.
func TestSchemaHasTheKeysOfTheLoader(t *testing.T) {
	f := readFile(nil, func(string) bool { return false })
	seen := 0
	var check func(s *yamldoc.Shape, before, after string)
	check = func(s *yamldoc.Shape, before, after string) {
		switch s.Kind {
		case yamldoc.List:
			check(s.Item, before+"[", "]"+after)
		case yamldoc.Object:
			seen++
			doc := before + "{no such key: 1}" + after
			_, err := load([]byte(doc), Source{})
			found := regexp.MustCompile(`unknown key "no such key"; expected one of ([a-z_, ]+)`).FindStringSubmatch(errText(err))
			keys := slices.Sorted(maps.Keys(s.Fields))
			if len(found) != 2 || found[1] != strings.Join(keys, ", ") {
				t.Errorf("%s: the loader returned %v, want an error with the keys of the schema: %v", doc, err, keys)
			}
			for key, below := range s.Fields {
				check(below, fmt.Sprintf("%s{%s: ", before, key), "}"+after)
			}
		default:
		}
	}
	check(f.Describe(f.keys()), "", "")
	if seen < 12 {
		t.Errorf("the schema has %d mappings, want at least 12", seen)
	}
	for _, s := range settings {
		if !bytes.Contains(Schema(), []byte(s.help)) && !strings.ContainsAny(s.help, "<>&") {
			t.Errorf("the schema does not describe %s with its help, want %q in it", s.path, s.help)
		}
	}
}
