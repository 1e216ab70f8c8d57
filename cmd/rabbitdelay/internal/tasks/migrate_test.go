package tasks_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// --print prints the SQL for every table for each kind of database. With --json, the SQL is the same.
func TestMigratePrint(t *testing.T) {
	for _, db := range []string{"postgres:", "mysql:", "sqlite:"} {
		t.Run(db, func(t *testing.T) {
			text := clitest.Expect(t, 0, "migrate", "--db", db, "--print")
			for _, table := range []string{"rabbitdelay_processed", "rabbitdelay_tasks"} {
				if !strings.Contains(text.Stdout, table) {
					t.Errorf("got the SQL\n%[2]s\nwant it to create the table %[1]s", table, text.Stdout)
				}
			}
			if text.Stderr != "" {
				t.Errorf(`got Stderr = %q, want ""`, text.Stderr)
			}
			var script struct{ Database, SQL string }
			got := clitest.Expect(t, 0, "migrate", "--db", db, "--print", "--json")
			if err := json.Unmarshal([]byte(got.Stdout), &script); err != nil {
				t.Fatalf("the output is not JSON: %v\n%s", err, got)
			}
			if script.SQL+"\n" != text.Stdout {
				t.Errorf("--json printed the SQL\n%s\nwant as without it\n%s", script.SQL, text.Stdout)
			}
		})
	}
}
