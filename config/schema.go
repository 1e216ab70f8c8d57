package config

import (
	"encoding/json"

	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// Schema returns the JSON schema (draft 2020-12) of the YAML file, for editors. It is made by the
// functions that read the file, so it has the same keys and kinds of values, except that Load
// also accepts a number, true or false in quotes. Values, and what they mean together, are
// checked by Load.
func Schema() []byte {
	f := readFile(nil, func(string) bool { return false })
	root := schemaOf(f.Describe(f.keys()))
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "rabbitdelay"
	root["description"] = "Settings and topology of rabbitdelay; `rabbitdelay validate -f FILE` checks the values too."
	root["type"] = []string{"object", "null"}
	root["$defs"] = map[string]any{
		"variable": map[string]any{"type": "string", "pattern": `\$\{`, "description": "contains environment variables, ${NAME} or ${NAME:-value}"},
	}
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("config: " + err.Error()) // maps, lists and texts
	}
	return append(text, '\n')
}

// schemaOf returns the JSON schema of a shape.
func schemaOf(s *yamldoc.Shape) map[string]any {
	out := map[string]any{}
	switch s.Kind {
	case yamldoc.Object:
		properties := map[string]any{}
		for key, f := range s.Fields {
			properties[key] = schemaOf(f)
		}
		out["type"], out["properties"], out["additionalProperties"] = "object", properties, false
	case yamldoc.Table:
		out["type"] = "object"
	case yamldoc.List:
		out["type"], out["items"] = "array", schemaOf(s.Item)
	case yamldoc.Text:
		out["type"] = "string"
	case yamldoc.Scalar:
		out["type"] = []string{"string", "number", "boolean"}
	case yamldoc.Duration:
		out["anyOf"] = orVariable(map[string]any{"type": "string", "pattern": `^[-+]?(0|([0-9.]+(ns|us|µs|μs|ms|s|m|h|d|w))+)$`}, map[string]any{"const": 0})
	case yamldoc.Boolean:
		out["anyOf"] = orVariable(map[string]any{"type": "boolean"})
	case yamldoc.Integer:
		out["anyOf"] = orVariable(map[string]any{"type": "integer"})
	case yamldoc.Number:
		out["anyOf"] = orVariable(map[string]any{"type": "number"})
	case yamldoc.Any:
	}
	if s.Null {
		out["type"] = []any{out["type"], "null"}
	}
	if s.Meaning != "" {
		out["description"] = s.Meaning + "; default: " + s.Default
	}
	return out
}

func orVariable(kinds ...any) []any {
	return append(kinds, map[string]any{"$ref": "#/$defs/variable"})
}
