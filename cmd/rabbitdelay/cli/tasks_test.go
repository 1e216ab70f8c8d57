package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func TestTasksUsageErrors(t *testing.T) {
	const from = "--db sqlite:/none/x.db "
	for args, want := range map[string]string{
		"tasks list":                             "no database; give --db, database.url in the file, or RABBITDELAY_DATABASE_URL",
		"relay":                                  "no database; give --db, database.url in the file, or RABBITDELAY_DATABASE_URL",
		"tasks fly":                              `unknown command "fly"; see rabbitdelay tasks --help`,
		"tasks list x":                           `unexpected argument "x"; see rabbitdelay tasks list --help`,
		"tasks show":                             "no task id; give one or more; see rabbitdelay tasks show --help",
		"tasks cancel":                           "no task id; give one or more; see rabbitdelay tasks cancel --help",
		"tasks reschedule x " + from:             "no instant; give --delay or --at",
		"tasks reschedule x --delay -1s " + from: "--delay: -1s; expected 0 or more",
		"tasks list --status odd " + from:        `--status: "odd"; expected pending, done, cancelled or failed`,
		"tasks list --limit -1 " + from:          "--limit: -1; expected 0 (no limit) or more",
		"tasks list --due-from soon " + from:     `invalid argument "soon" for "--due-from" flag: expected an instant such as 2026-01-31T08:00:00Z, now, or a duration from now such as 2h or -7d, got "soon"; see rabbitdelay tasks list --help`,
		"tasks count --per 0s " + from:           "--per: 0s; expected 1ms or more",
		"tasks count --per 1s --due-from 2026-01-01T00:00:00Z --due-to 2026-01-02T00:00:00Z " + from: "--per: 1s; 86400 steps up to --due-to, expected at most 1000",
		"tasks list " + from: "connecting to the database: unable to open database file (14)",
		"tasks revive x --delay 1s --at 2030-01-01T00:00:00Z " + from: "both --delay and --at; give one",
	} {
		code, stdout, stderr := run(t, "", strings.Fields(args)...)
		if code != 1 || stdout != "" || stderr != "rabbitdelay: "+want+"\n" {
			t.Errorf("%s: exit %d, output %q, errors:\n%swant:\nrabbitdelay: %s", args, code, stdout, stderr, want)
		}
	}
}

// The database may come from the environment.
func TestTasksDatabaseFromEnvironment(t *testing.T) {
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+t.TempDir()+"/tasks.db")
	if code, _, stderr := run(t, "", "migrate"); code != 0 {
		t.Fatal(stderr)
	}
	if code, stdout, stderr := run(t, "", "tasks", "count", "--json"); code != 0 || stdout != `{"total":0}`+"\n" {
		t.Errorf("exit %d, output %s, errors %s", code, stdout, stderr)
	}
	if code, stdout, stderr := run(t, "", "tasks", "list"); code != 0 || stdout != "" || stderr != "no such tasks\n" {
		t.Errorf("exit %d, output %s, errors %s", code, stdout, stderr)
	}
}

func TestFromNow(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]string{
		0: "now", 400 * time.Millisecond: "now", -400 * time.Millisecond: "now", time.Second: "in 1s", -time.Second: "1s ago",
		59*time.Second + 600*time.Millisecond: "in 1m0s", 90 * time.Minute: "in 1h30m", -49 * time.Hour: "2d1h ago",
		7*24*time.Hour - time.Millisecond: "in 7d0h", 3650 * 24 * time.Hour: "in 3650d0h",
	} {
		if got := fromNow(now.Add(d), now); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

func TestMoment(t *testing.T) {
	for text, want := range map[string]time.Duration{"now": 0, "2h": 2 * time.Hour, "+2h": 2 * time.Hour, "-7d": -7 * 24 * time.Hour, "0s": 0} {
		var m moment
		if err := m.Set(text); err != nil || (time.Until(m.at)-want).Abs() > time.Minute || m.String() != text {
			t.Errorf("%s is %v, %v", text, m.at, err)
		}
	}
	var m moment
	if err := m.Set("2026-01-31T08:00:00Z"); err != nil || !m.at.Equal(time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)) {
		t.Error(m.at, err)
	}
	for _, bad := range []string{"", "-", "--1h", "+-1h", "-+1h", "1", "tomorrow"} {
		if err := m.Set(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Nothing that others wrote reaches the terminal as it is when it could steer
// it, or break a table.
func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{
		"order-42": "order-42", "заказ 7": "заказ 7", "a\tb": `"a\tb"`, "\x1b[31m": `"\x1b[31m"`, "a\nb": `"a\nb"`, "\xff": `"\xff"`, "": "",
	} {
		if got := printable(s); got != want {
			t.Errorf("%q is printed as %s, want %s", s, got, want)
		}
	}
}

func TestRemedies(t *testing.T) {
	for want, e := range map[string]schedule.StatusError{
		"use revive":        {Action: "fire", Status: schedule.StatusFailed},
		"nothing to cancel": {Action: "cancel", Status: schedule.StatusFailed},
		"has happened":      {Action: "revive", Status: schedule.StatusDone},
		"nothing to do":     {Action: "cancel", Status: schedule.StatusCancelled},
		"or replace it":     {Action: "reschedule", Status: schedule.StatusCancelled},
		"reschedule or fi":  {Action: "revive", Status: schedule.StatusPending},
	} {
		if got := remedy(&e); !strings.Contains(got, want) {
			t.Errorf("%+v: %s", e, got)
		}
	}
}
