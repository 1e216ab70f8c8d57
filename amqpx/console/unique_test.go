package console

import (
	"encoding/json"
	"fmt"
	"testing"
)

// The API says which task stands for a unique key, and what was done.
func TestUniqueKeys(t *testing.T) {
	w := newWorld(t)
	put := func(id, unique string) string {
		t.Helper()
		r := w.ask("PUT", "/api/v1/tasks/"+id, `{"queue":"orders","due":"1h","unique":`+unique+`}`)
		var s struct {
			ID, Outcome string
			Created     bool
		}
		_ = json.Unmarshal(r.text, &s)
		return fmt.Sprint(r.code, " ", s.ID, " ", s.Outcome, " ", s.Created)
	}
	for _, x := range []struct{ id, unique, want string }{
		{"u1", `{"key":"k"}`, "201 u1 created true"},
		{"u2", `{"key":"k"}`, "200 u1 kept false"},
		{"u2", `{"key":"k","on_pending":"replace"}`, "200 u1 replaced false"},
		{"u2", `{"key":"k","on_pending":"push-back","max_wait":"2h"}`, "200 u1 pushed-back false"},
		{"u2", `{"key":"k","on_pending":"push-back"}`, "422   false"},
		{"u2", `{"key":"k","on_pending":"throttle"}`, "422   false"},
		{"u2", `{"key":"k","cooldown":"soon"}`, "422   false"},
		{"u2?replace=true", `{"key":"k"}`, "422   false"},
		{"u2", `{}`, "422   false"},
	} {
		if got := put(x.id, x.unique); got != x.want {
			t.Errorf("%s %s: %q, expected %q", x.id, x.unique, got, x.want)
		}
	}
	batch := w.must(200, "POST", "/api/v1/tasks", `{"tasks":[{"id":"u3","queue":"orders","due":"1h","unique":{"key":"k"}},{"id":"u4","queue":"orders","due":"1h"}]}`)
	if got := fmt.Sprint(batch["created"], batch["tasks"]); got != "1 [map[created:false id:u1 outcome:kept] map[created:true id:u4]]" {
		t.Errorf("a batch: %s", got)
	}
	if list := w.must(200, "GET", "/api/v1/tasks?unique_key=k", "")["tasks"].([]any); len(list) != 1 || list[0].(map[string]any)["unique_key"] != "k" {
		t.Errorf("the tasks of the key: %v", list)
	}
}
