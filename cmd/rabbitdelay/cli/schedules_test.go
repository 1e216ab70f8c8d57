package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
)

// onDatabase sets a database, and returns a runner of commands that expects an exit code.
func onDatabase(t *testing.T) func(code int, args ...string) (stdout, stderr string) {
	t.Helper()
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+t.TempDir()+"/tasks.db")
	do := func(code int, args ...string) (string, string) {
		t.Helper()
		got, stdout, stderr := run(t, "", args...)
		if got != code {
			t.Fatalf("%s: exit %d, expected %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
		}
		return stdout, stderr
	}
	do(0, "migrate")
	return do
}

func expectText(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Fatalf("expected %q in\n%s", w, got)
		}
	}
}

func TestSchedulesCommands(t *testing.T) {
	do := onDatabase(t)
	_, stderr := do(0, "schedules", "list")
	expectText(t, stderr, "no recurring tasks")
	out, _ := do(0, "schedules", "add", "nightly", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--queue", "reports",
		"--body", `{"kind":"full"}`, "--header", "tenant=blue", "--tag", "blue", "--jitter", "5m", "--end", "2099-01-01T00:00:00Z")
	expectText(t, out, "nightly: active, next ")
	do(0, "schedules", "add", "pulse", "--every", "15m", "--exchange", "pulses", "--routing-key", "p", "--overlap", "skip")
	_, stderr = do(1, "schedules", "add", "pulse", "--every", "15m", "--queue", "q")
	expectText(t, stderr, "recurring task pulse: there is a recurring task of that name already")

	out, _ = do(0, "schedules", "list")
	expectText(t, out, "nightly  30 2 * * * Europe/Berlin  reports", "pulse    every 15m                 pulses:p")
	out, _ = do(0, "tasks", "list", "--id-prefix", "nightly@")
	expectText(t, out, "nightly@20", ":30:00Z", "pending")
	out, _ = do(0, "schedules", "show", "nightly")
	expectText(t, out, "misfire      once", "tenant=blue", `{"kind":"full"}`, "LOCAL TIME", "02:30:00 CE")
	if n := strings.Count(out, "nightly@"); n != 10 {
		t.Errorf("show has %d occurrences:\n%s", n, out)
	}

	do(0, "schedules", "edit", "nightly", "--cron", "0 3 * * *", "--end", "none")
	out, _ = do(0, "schedules", "show", "nightly", "--json")
	var l asjson.Recurring
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		t.Fatal(err)
	}
	if l.Cron != "0 3 * * *" || l.TimeZone != "Europe/Berlin" || l.Queue != "reports" || l.Body != `{"kind":"full"}` || l.End != "" || len(l.Next) != 10 || l.Version != 2 {
		t.Errorf("after the edit: %+v", l)
	}
	do(0, "schedules", "edit", "pulse", "--cron", "@hourly", "--queue", "q")
	out, _ = do(0, "schedules", "list", "--json")
	expectText(t, out, `"name":"pulse","state":"active","cron":"@hourly","time_zone":"UTC"`, `"queue":"q"`)

	out, _ = do(0, "schedules", "pause", "nightly", "pulse")
	expectText(t, out, "nightly: paused\npulse: paused\n")
	out, _ = do(0, "tasks", "list", "--status", "pending", "--json")
	if out != "" {
		t.Errorf("still pending: %s", out)
	}
	out, _ = do(0, "schedules", "fire", "nightly")
	expectText(t, out, "nightly@20")
	out, _ = do(0, "schedules", "resume", "nightly")
	expectText(t, out, "nightly: active, next ")
	out, _ = do(0, "schedules", "delete", "nightly")
	expectText(t, out, "nightly: deleted")
	out, stderr = do(1, "schedules", "resume", "nightly", "pulse")
	expectText(t, stderr, `recurring task nightly: there is no recurring task of that name; "rabbitdelay schedules list" shows those there are`)
	expectText(t, out, "pulse: active")
}

func TestSchedulesNext(t *testing.T) {
	code, out, stderr := run(t, "", "schedules", "next", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--from", "2026-03-28T00:00:00Z", "--count", "3")
	if want := `LOCAL TIME                    DUE                       TASK
Sat 2026-03-28 02:30:00 CET   2026-03-28T01:30:00.000Z  preview@2026-03-28T01:30:00Z
Sun 2026-03-29 03:00:00 CEST  2026-03-29T01:00:00.000Z  preview@2026-03-29T01:00:00Z
Mon 2026-03-30 02:30:00 CEST  2026-03-30T00:30:00.000Z  preview@2026-03-30T00:30:00Z
`; code != 0 || out != want {
		t.Errorf("exit %d, %s\ngot:\n%swant:\n%s", code, stderr, out, want)
	}
}

func TestSchedulesUsageErrors(t *testing.T) {
	onDatabase(t)
	for args, want := range map[string]string{
		"schedules add":             `expected one name of a recurring task, got ""; see rabbitdelay schedules add --help`,
		"schedules pause":           "no name of a recurring task; give one or more; see rabbitdelay schedules pause --help",
		"schedules add x --queue q": `recurring task "x": cron: there is none, and no interval; expected one of them`,
		"schedules add x --cron @daily --every 1s --queue q":   "both --cron and --every; give one",
		"schedules add x --cron @daily --queue q --exchange e": "both --queue and --exchange; give one",
		"schedules add x --every 1500ms --queue q":             `recurring task "x": every: 1.5s, expected whole seconds up to 100 years`,
		"schedules add x --cron @daily --time-zone Mars/X --queue q": `recurring task "x": time zone: "Mars/X" is unknown, ` +
			"expected an IANA name such as Europe/Berlin",
		"schedules next":                      "no timetable; give the name of a recurring task, --cron or --every",
		"schedules next x --count 0":          "--count: 0; expected 1 to 10000",
		"schedules edit none":                 "nothing to change; give what is to change, such as --cron or --end; see rabbitdelay schedules edit --help",
		"schedules edit none --cron @monthly": `recurring task none: there is no recurring task of that name; "rabbitdelay schedules list" shows those there are`,
	} {
		code, stdout, stderr := run(t, "", strings.Fields(args)...)
		if code != 1 || stdout != "" || stderr != "rabbitdelay: "+want+"\n" {
			t.Errorf("%s: exit %d, output %q, errors:\n%swant:\nrabbitdelay: %s", args, code, stdout, stderr, want)
		}
	}
}

// What the file says is written once, and what is removed from it goes on.
func TestSchedulesOfFile(t *testing.T) {
	do := onDatabase(t)
	file := filepath.Join(t.TempDir(), "delays.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("schedules:\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("- {name: a, cron: '@daily', queue: q}\n- {name: b, every: 1h, queue: q}\n")
	out, _ := do(0, "migrate", "-f", file)
	expectText(t, out, "recurring tasks: created a, b")
	do(0, "schedules", "pause", "a")
	out, stderr := do(0, "migrate", "-f", file)
	if strings.Contains(out, "recurring") || stderr != "" {
		t.Errorf("a second time: %s%s", out, stderr)
	}
	write("- {name: a, cron: '@hourly', queue: q}\n")
	out, stderr = do(0, "migrate", "-f", file, "--json")
	expectText(t, out, `"schedules_changed":["a"]`)
	expectText(t, stderr, "not in "+file+": b; they go on")
	out, _ = do(0, "schedules", "list")
	expectText(t, out, "a     @hourly UTC  q            paused", "b     every 1h     q            active")
	_, stderr = do(0, "schedules", "resume", "a")
	expectText(t, stderr, "a stands in a configuration file")
}
