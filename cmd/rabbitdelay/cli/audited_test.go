package cli

import (
	"database/sql"
	"os"
	"slices"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // the database of the test
)

// Every change by a command is in the audit: of one task, one recurring task, one destination,
// with what is new and the error of one that fails. What only looks, or adds a task as an application does, is not.
func TestChangesAreRecorded(t *testing.T) {
	path := t.TempDir() + "/tasks.db"
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+path)
	for _, args := range []string{
		"migrate",
		"tasks add --id a --queue mail --delay 1h",
		"tasks reschedule a --at 2099-12-24T08:00:00Z --actor ann", "tasks reschedule a --by 2h --actor ann", "tasks fire a --actor ann", "tasks cancel a --actor ann", "tasks cancel a --actor ann",
		"tasks pause --queue mail --actor ann", "tasks ceiling --queue mail --per-second 5 --actor ann", "tasks resume --queue mail --spread 30m --actor ann", "tasks ceiling --queue mail --per-second 0 --actor ann",
		"schedules add n --every 1h --queue mail --actor ann", "schedules edit n --every 2h --actor ann", "schedules pause n --actor ann",
		"schedules resume n --actor ann", "schedules fire n --actor ann", "schedules delete n --actor ann",
		"tasks list", "tasks show a", "tasks held", "schedules list",
	} {
		run(t, "", strings.Fields(args)...)
	}
	got := auditOf(t, path, "action || ' ' || target || CASE WHEN detail = '' THEN '' ELSE ' ' || detail END || CASE WHEN error = '' THEN '' ELSE ' failed' END")
	want := []string{
		"task.reschedule a to 2099-12-24T08:00:00.000Z", "task.reschedule a by 2h", "task.fire a", "task.cancel a", "task.cancel a failed",
		"destination.pause mail", "destination.ceiling mail 5 a second", "destination.resume mail over 30m", "destination.ceiling mail none",
		"recurring.add n", "recurring.edit n", "recurring.pause n", "recurring.resume n", "recurring.fire n", "recurring.delete n",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What plugin drain moved is recorded; here its table has one message, which is due too soon.
func TestDrainIsRecorded(t *testing.T) {
	dir := t.TempDir()
	path, ctl := dir+"/tasks.db", dir+"/rabbitmqctl"
	table := `{"node":"cmFiYml0QGE=","now":1795399963926,"rows":1,"elsewhere":0,"has_queue":true}
{"end":true,"soon":1,"other":0}
`
	if err := os.WriteFile(ctl, []byte("cat <<'END'\n"+table+"END\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, broker := memoryBroker(t)
	run(t, "", "migrate", "--db", "sqlite:"+path)
	code, out, errs := run(t, "", "plugin", "drain", "--db", "sqlite:"+path, "--rabbitmqctl", "sh "+ctl, "--state", dir+"/state", "--strategy", "bucket",
		"--exchange", "orders", "--yes", "--actor", "ann", "--url", broker)
	got := auditOf(t, path, "action || ' ' || target || ' ' || detail || ': ' || result")
	if want := []string{"plugin.drain / orders: 0 messages moved, 1 stayed"}; code != 0 || !slices.Equal(got, want) {
		t.Errorf("exit %d: %s%s\nthe audit has %q, want %q", code, out, errs, got, want)
	}
}

// auditOf returns the column of each entry of ann in the audit, oldest first.
func auditOf(t *testing.T, path, column string) (list []string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT "+column+" FROM rabbitdelay_audit WHERE who = 'ann' ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		list = append(list, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}
