package suite

import (
	"encoding/json"
	"testing"
)

// Objects decodes standard output as JSON lines.
func (r Ran) Objects(t *testing.T) []map[string]any {
	t.Helper()
	var list []map[string]any
	for _, line := range r.Lines() {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("got the line %q (error %v), want a JSON object\n%s", line, err, r)
		}
		list = append(list, m)
	}
	return list
}
