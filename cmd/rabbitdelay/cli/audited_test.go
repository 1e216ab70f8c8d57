package cli

import (
	"database/sql"
	"slices"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // the database of the test
)

// Every change by a command is in the audit: of one task, one recurring task, one destination,
// with the error of one that fails. What only looks, or adds a task as an application does, is not.
func TestChangesAreRecorded(t *testing.T) {
	path := t.TempDir() + "/tasks.db"
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+path)
	for _, args := range []string{
		"migrate",
		"tasks add --id a --queue mail --delay 1h",
		"tasks reschedule a --delay 2h --actor ann", "tasks fire a --actor ann", "tasks cancel a --actor ann", "tasks cancel a --actor ann",
		"tasks pause --queue mail --actor ann", "tasks ceiling --queue mail --per-second 5 --actor ann", "tasks resume --queue mail --actor ann",
		"schedules add n --every 1h --queue mail --actor ann", "schedules edit n --every 2h --actor ann", "schedules pause n --actor ann",
		"schedules resume n --actor ann", "schedules fire n --actor ann", "schedules delete n --actor ann",
		"tasks list", "tasks show a", "tasks held", "schedules list",
	} {
		run(t, "", strings.Fields(args)...)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT action || ' ' || target || CASE WHEN error = '' THEN '' ELSE ' failed' END FROM rabbitdelay_audit WHERE who = 'ann' ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		got = append(got, line)
	}
	want := []string{
		"task.reschedule a", "task.fire a", "task.cancel a", "task.cancel a failed",
		"destination.pause mail", "destination.ceiling mail", "destination.resume mail",
		"recurring.add n", "recurring.edit n", "recurring.pause n", "recurring.resume n", "recurring.fire n", "recurring.delete n",
	}
	if !slices.Equal(got, want) || rows.Err() != nil {
		t.Errorf("%v\nthe audit has\n%s\nwant\n%s", rows.Err(), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
