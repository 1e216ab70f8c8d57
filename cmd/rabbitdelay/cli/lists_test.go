package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// mayBeNull are keys of what is no list, or a list that says so when it is unknown.
var mayBeNull = []string{"broker", "tasks", "oldest", "oldest_overdue", "dead", "clients", "relays", "waiting"}

// nulls are the paths of what is null in a value, but may not be.
func nulls(at string, v any) (list []string) {
	switch v := v.(type) {
	case nil:
		if i := strings.LastIndexByte(at, '.'); !slices.Contains(mayBeNull, at[i+1:]) {
			list = append(list, at)
		}
	case map[string]any:
		for key, x := range v {
			list = append(list, nulls(at+"."+key, x)...)
		}
	case []any:
		for i, x := range v {
			list = append(list, nulls(fmt.Sprintf("%s[%d]", at, i), x)...)
		}
	}
	return list
}

// A list that is empty is [] in JSON, so that programs need not ask whether there is
// one.
func TestEmptyListsInJSON(t *testing.T) {
	_, broker := memoryBroker(t)
	file := "sqlite:" + tasksDB(t)
	const nobody = "amqp://guest:guest@127.0.0.1:1/"
	for _, c := range []struct {
		line string
		code int
	}{
		{"status --url " + broker, 2},
		{"plan --url " + broker, 2},
		{"apply --url " + broker, 0},
		{"plan --url " + broker, 2},
		{"status --url " + broker, 2},
		{"status --url " + broker + " --db " + file, 2},
		{"status --url " + nobody + " --db " + file, 2},
		{"doctor --url " + broker + " --db " + file, 2},
		{"trace a --url " + broker + " --db " + file, 2},
		{"schedules add n --every 1h --queue q --db " + file, 0},
		{"schedules show n --db " + file, 0},
		{"tasks add --id a --queue orders --at +1h --db " + file, 0},
		{"tasks show a --db " + file, 0},
		{"tasks list --db " + file, 0},
		{"trace a --url " + broker + " --db " + file, 2},
		{"send --queue orders --url " + broker, 0},
		{"requeue --queue orders.dead --dry-run --url " + broker, 0},
		{"requeue --queue orders.dead --yes --url " + broker, 0},
		{"destroy --yes --force --url " + broker, 0},
		{"migrate --db " + file, 0},
		{"version", 0},
	} {
		code, out, errs := run(t, "", append(strings.Fields(c.line), "--json")...)
		if code != c.code || out == "" {
			t.Errorf("%s: exit %d, expected %d: %s", c.line, code, c.code, errs)
		}
		for line := range strings.Lines(out) {
			var v any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%s: %v: %s", c.line, err, line)
			}
			if list := nulls("", v); len(list) > 0 {
				t.Errorf("%s: %v are null", c.line, list)
			}
		}
	}
}
