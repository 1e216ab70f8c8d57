package cli_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// mayBeNull are keys of values that are not lists, or lists that say so when they are unknown.
var mayBeNull = []string{"broker", "tasks", "oldest", "oldest_overdue", "dead", "clients", "relays", "waiting"}

// nulls returns the paths of values that are null, but may not be.
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

// A list that is empty is [] in JSON, so that programs need not ask whether there is one.
func TestEmptyListsInJSON(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	onBroker, onDB, onNothing := " --url "+b.URL, " --db "+clitest.NewDB(t), " --url amqp://guest:guest@127.0.0.1:1/"
	for _, c := range []struct {
		line string
		code int
	}{
		{"status" + onBroker, 2},
		{"plan" + onBroker, 2},
		{"apply" + onBroker, 0},
		{"plan" + onBroker, 2},
		{"status" + onBroker, 2},
		{"status" + onBroker + onDB, 2},
		{"status" + onNothing + onDB, 2},
		{"doctor" + onBroker + onDB, 2},
		{"trace a" + onBroker + onDB, 2},
		{"schedules add n --every 1h --queue q" + onDB, 0},
		{"schedules show n" + onDB, 0},
		{"tasks add --id a --queue orders --at +1h" + onDB, 0},
		{"tasks show a" + onDB, 0},
		{"tasks list" + onDB, 0},
		{"trace a" + onBroker + onDB, 2},
		{"send --queue orders" + onBroker, 0},
		{"requeue --queue orders.dead --dry-run" + onBroker, 0},
		{"requeue --queue orders.dead --yes" + onBroker, 0},
		{"destroy --yes --force" + onBroker, 0},
		{"migrate" + onDB, 0},
		{"version", 0},
	} {
		got := clitest.Expect(t, c.code, append(strings.Fields(c.line), "--json")...)
		if got.Stdout == "" {
			t.Errorf("%s prints nothing", c.line)
		}
		for line := range strings.Lines(got.Stdout) {
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
