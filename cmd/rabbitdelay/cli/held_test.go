package cli

import (
	"regexp"
	"strings"
	"testing"
)

// A destination is paused and resumed, twice without harm, and status says so.
func TestTasksPause(t *testing.T) {
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+t.TempDir()+"/tasks.db")
	expect := func(args, out, errs string, want int) {
		t.Helper()
		code, stdout, stderr := run(t, "", strings.Fields(args)...)
		if code != want || !regexp.MustCompile("^(?s:"+out+")$").MatchString(stdout) || !strings.Contains(stderr, errs) {
			t.Errorf("%s: exit %d, output:\n%serrors:\n%s", args, code, stdout, stderr)
		}
	}
	expect("migrate", ".*", "", 0)
	expect("tasks held", "", "no destination is held back", 0)
	expect("tasks add --id a --queue mail --delay 0s", ".*", "", 0)
	expect("tasks pause --queue mail --actor alice", `mail: paused since \S+Z by alice\n`, "no relay runs on this database, so nobody takes back the tasks that the broker has", 0)
	expect("tasks pause --queue mail", `mail: paused since \S+Z by alice\n`, "", 0)
	expect("tasks held", `DESTINATION +WAITING +STATE\nmail +1 +paused since \S+Z by alice\n`, "", 0)
	expect("tasks held --json", `\{"queue":"mail","paused_at":"[^"]+Z","paused_by":"alice","waiting":1,"busy":false\}\n`, "", 0)
	expect("tasks resume --queue mail --spread 30m --json", `\{"queue":"mail","spread_until":"[^"]+Z","waiting":1,"busy":true\}\n`, "", 0)
	expect("tasks pause --exchange events --json", `\{"exchange":"events","paused_at":"[^"]+Z","paused_by":"[^"]+@[^"]+","waiting":0,"busy":false\}\n`, "", 0)
	expect("tasks resume --exchange events", "events: its tasks are sent\n", "", 0)
	expect("tasks ceiling --queue mail --per-second 50 --json", `\{"queue":"mail",.*"per_second":50,"burst":5,.*\}\n`, "", 0)
	expect("tasks ceiling --queue mail --per-second 0", "mail: .*\n", "", 0)
	expect("tasks ceiling --queue mail", "", "no rate; give --per-second", 1)
	expect("tasks ceiling --queue mail --per-second -1", "", "expected 0 for none", 1)
	expect("tasks resume --exchange events --spread 40d", "", "spread is 40d; it must be 0 to 30d", 1)
}
