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

// mayBeNull lists the keys of values that are not lists, and of lists that are null if they are unknown.
var mayBeNull = []string{"broker", "tasks", "oldest", "oldest_overdue", "dead", "clients", "relays", "waiting"}

// nulls returns the paths of values that are null, except those in mayBeNull.
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

// An empty list is [] in JSON, so that programs need not check whether it exists. Null means unknown: without the
// management API, status reports neither the alarms nor how many messages are not ready, and plan reports neither
// policies nor stray bindings, and trace no route queues. Without a broker or a database, status and trace report its contents as unknown.
func TestEmptyListsInJSON(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	onBroker, onDB, onNothing := " --url "+b.URL, " --db "+clitest.NewDB(t), " --url amqp://guest:guest@127.0.0.1:1/"
	overAMQP := []string{".alarms", ".parked.held"}
	inLayout := []string{".layouts[0].waiting.leaving", ".layouts[0].waiting.unacked"}
	for _, c := range []struct {
		line    string
		code    int
		unknown []string
	}{
		{"status" + onBroker, 2, overAMQP},
		{"plan" + onBroker, 2, []string{".strays", ".warnings"}},
		{"apply" + onBroker, 0, nil},
		{"plan" + onBroker, 2, []string{".strays", ".warnings"}},
		{"status" + onBroker, 2, slices.Concat(inLayout, overAMQP)},
		{"status" + onBroker + onDB, 2, slices.Concat(inLayout, overAMQP, []string{".tasks.sent"})},
		{"status" + onNothing + onDB, 2, []string{
			".alarms", ".destinations", ".due_soon[0].on_broker_at_least", ".due_soon[1].on_broker_at_least",
			".due_soon[2].on_broker_at_least", ".due_soon[3].on_broker_at_least", ".findings", ".layouts", ".parked.held", ".tasks.sent",
		}},
		{"doctor" + onBroker + onDB, 2, nil},
		{"trace a" + onBroker + onDB, 2, []string{".routes_not_empty"}},
		{"schedules add n --every 1h --queue q" + onDB, 0, nil},
		{"schedules show n" + onDB, 0, nil},
		{"tasks add --id a --queue orders --at +1h" + onDB, 0, nil},
		{"tasks show a" + onDB, 0, nil},
		{"tasks list" + onDB, 0, nil},
		{"trace a" + onBroker + onDB, 2, []string{".routes_not_empty"}},
		{"trace a" + onBroker, 2, []string{".effects", ".records", ".routes_not_empty", ".scopes"}},
		{"trace a" + onNothing + onDB, 2, []string{".dead_letters", ".delay_queues_not_empty", ".destinations_not_empty", ".routes_not_empty", ".searched"}},
		{"send --queue orders" + onBroker, 0, nil},
		{"requeue --queue orders.dead --dry-run" + onBroker, 0, nil},
		{"requeue --queue orders.dead --yes" + onBroker, 0, nil},
		{"destroy --yes --force" + onBroker, 0, nil},
		{"migrate" + onDB, 0, nil},
		{"version", 0, nil},
	} {
		got := clitest.Expect(t, c.code, append(strings.Fields(c.line), "--json")...)
		if got.Stdout == "" {
			t.Errorf("%s printed nothing, want JSON", c.line)
		}
		for line := range strings.Lines(got.Stdout) {
			var v any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%s printed a line that is not JSON: %v: %s", c.line, err, line)
			}
			list := nulls("", v)
			slices.Sort(list)
			slices.Sort(c.unknown)
			if !slices.Equal(list, c.unknown) {
				t.Errorf("%s: the values %v are null, want %v", c.line, list, c.unknown)
			}
		}
	}
}
