package config

import (
	"strings"
	"testing"
)

// A schedule whose destination migrate or serve would refuse is refused when the file is loaded.
func TestSchedulesOfDestinationsThatAreRefused(t *testing.T) {
	const head = "destinations: [{queue: q}, {exchange: amq.direct, routing_key: paid}]\nschedules:\n  - name: nightly\n    cron: 0 3 * * *\n"
	for name, c := range map[string]struct{ declare, destination, problem string }{
		"listed":                   {"listed", "    queue: q\n", ""},
		"an exchange, listed":      {"listed", "    exchange: amq.direct\n    routing_key: paid\n", ""},
		"not listed":               {"listed", "    queue: other\n", "line 6, column 12: schedules[0].queue"},
		"another key":              {"listed", "    exchange: amq.direct\n    routing_key: lost\n", "line 6, column 15: schedules[0].exchange"},
		"missing ones are created": {"missing", "    queue: other\n", ""},
		"a queue of a strategy":    {"missing", "    queue: delay.parked\n", "schedules[0].queue"},
	} {
		_, err := load([]byte("broker: {declare: "+c.declare+"}\n"+head+c.destination), Source{File: "x.yaml"})
		switch {
		case c.problem == "" && err != nil:
			t.Errorf("%s: load returned %v, want no error", name, err)
		case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
			t.Errorf("%s: load returned %v, want an error with %q", name, err, c.problem)
		}
	}
}
