package cli

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/config"
)

func TestTasksUsageErrors(t *testing.T) {
	const from = "--db sqlite:/none/x.db "
	for args, want := range map[string]string{
		"tasks list":                                     "no database; give --db, database.url in the file, or RABBITDELAY_DATABASE_URL",
		"serve --listen :0":                              `--listen: :0 can be reached from other machines, where everybody might change everything; give --users FILE, which "rabbitdelay users add" writes, or listen at 127.0.0.1`,
		"users add anna":                                 `--role: ""; expected viewer or operator`,
		"users add anna --role viewer":                   "no file of users; give --users, serve.users in the file, or RABBITDELAY_SERVE_USERS",
		"users token --role viewer":                      `expected one name, got ""; see rabbitdelay users token --help`,
		"tasks pause":                                    "no destination, or two; give --queue or --exchange",
		"tasks resume --queue a --exchange b":            "no destination, or two; give --queue or --exchange",
		"tasks fly":                                      `unknown command "fly"; see rabbitdelay tasks --help`,
		"tasks list x":                                   `unexpected argument "x"; see rabbitdelay tasks list --help`,
		"tasks show":                                     "no task id; give one or more; see rabbitdelay tasks show --help",
		"tasks cancel":                                   "no task; give ids, a filter such as --queue, or --all",
		"tasks delete":                                   "no task; give a filter such as --queue, or --all",
		"tasks cancel x --queue q":                       "both task ids and --queue; give either ids or filters",
		"tasks cancel x --yes":                           "--yes with task ids; it is for filters",
		"tasks cancel --all --queue q":                   "both --all and --queue; give one",
		"tasks cancel --all " + from:                     "cannot ask, because standard input is not a terminal; give --yes to go on without asking, or --dry-run to see what would happen",
		"tasks reschedule x --by 1h --delay 1h":          "--by with --delay or --at; give one",
		"tasks reschedule x --by 0s":                     `invalid argument "0s" for "--by" flag: expected a duration other than 0 such as 2h or -1d, got "0s"; see rabbitdelay tasks reschedule --help`,
		"tasks reschedule --all --by 1h --after x --yes": `--after: "x" is no cursor; expected one that was printed before, such as 1767225600000/order-42`,
		"tasks list --header x " + from:                  `--header: expected name=value, got "x"`,
		"tasks delete x":                                 `unexpected argument "x"; see rabbitdelay tasks delete --help`,
		"tasks reschedule x " + from:                     "no instant; give --delay, --at or --by",
		"tasks reschedule x --delay -1s " + from:         "--delay: -1s; expected 0 or more",
		"tasks list --status odd " + from:                `--status: "odd"; expected pending, running, done, cancelled, expired or failed`,
		"tasks list --status running " + from:            `connecting to the database: unable to open database file (14); expected a file that is there, and the right to write it and its directory; "rabbitdelay migrate" makes a new one`,
		"tasks list --limit -1 " + from:                  "--limit: -1; expected 0 (no limit) or more",
		"tasks list --due-from soon " + from:             `invalid argument "soon" for "--due-from" flag: expected an instant such as 2026-01-31T08:00:00Z, now, or a duration from now such as 2h or -7d, got "soon"; see rabbitdelay tasks list --help`,
		"tasks count --per 0s " + from:                   "--per: 0s; expected 1ms or more",
		"tasks count --per 1s --due-from 2026-01-01T00:00:00Z --due-to 2026-01-02T00:00:00Z " + from: "--per: 1s; 86400 steps up to --due-to, expected at most 1000",
		"tasks list " + from: `connecting to the database: unable to open database file (14); expected a file that is there, and the right to write it and its directory; "rabbitdelay migrate" makes a new one`,
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

// The outcome of a unique key is the first word, and no error.
func TestTasksAddUnique(t *testing.T) {
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+t.TempDir()+"/tasks.db")
	for _, step := range []struct {
		args, want string
		code       int
	}{
		{"migrate", "", 0},
		{"tasks add --unique-key k --id a --queue q --delay 1m", "created: a, due ", 0},
		{"tasks add --unique-key k --id b --queue q --delay 2m", "kept: a, due ", 0},
		{"tasks add --unique-key k --queue q --delay 2m --on-pending push-back --max-wait 5m", "pushed-back: a, due ", 0},
		{"tasks add --unique-key k --queue other --on-pending replace --json", `"outcome":"replaced","id":"a","queue":"other"`, 0},
		{"tasks show a", "unique key", 0},
		{"tasks list --unique-key k --json", `"unique_key":"k"`, 0},
		{"tasks list --unique-key other --json", "", 0},
		{"tasks add --unique-key k --queue q --on-pending push-back", "max wait", 1},
		{"tasks add --unique-key k --queue q --replace", "--replace", 1},
		{"tasks add --queue q --cooldown 1h", "--unique-key", 1},
	} {
		code, stdout, stderr := run(t, "", strings.Fields(step.args)...)
		out := stdout
		if step.code != 0 {
			out = stderr
		}
		if code != step.code || !strings.Contains(out, step.want) || step.want == "" && stdout != "" && step.args != "migrate" {
			t.Errorf("%s: exit %d, expected %d and %q\n%s%s", step.args, code, step.code, step.want, stdout, stderr)
		}
	}
}

// Tasks are added, found by tag and header, and changed many at once.
func TestTasksBulk(t *testing.T) {
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+t.TempDir()+"/tasks.db")
	for _, step := range []struct{ args, want string }{
		{"migrate", ""},
		{"tasks add --id a --queue q --at|tomorrow 08:00 Europe/Berlin|--tag vip --header tenant=blue --type t --correlation-id c --priority 2 --expires-after 1h --body x", "a: pending, due "},
		{"tasks add --id b --queue q --delay 1h --tag vip", "b: pending, due "},
		{"tasks add --id c --exchange e --routing-key k --delay 2h", "c: pending, due "},
		{"tasks add --id c --exchange e --delay 3h --replace", "version 2"},
		{"tasks show a", "expires"},
		{"tasks list --tag vip --header tenant=blue --json", `"tags":["vip"]`},
		{"tasks count --exchange e --json", `{"total":1}`},
		{"tasks cancel --tag vip --dry-run", "dry run: 2 tasks would be cancelled\n"},
		{"tasks reschedule --tag vip --by -30m --yes --json", `{"changed":2,"matching":2,`},
		{"tasks reschedule b --by 1h", "version 3"},
		{"tasks fire --queue q --spread 1m --limit 1 --yes", "1 of 1 task fired in "},
		{"tasks cancel --all --yes", "3 of 3 tasks cancelled in "},
		{"tasks cancel --all --yes", "0 of 0 tasks cancelled in "},
		{"tasks delete --tag vip --yes", "2 of 2 tasks deleted in "},
		{"tasks delete --status pending --yes", ""},
		{"tasks count --json", `{"total":1}`},
	} {
		var args []string
		for i, part := range strings.Split(step.args, "|") {
			if i%2 == 1 {
				args = append(args, part)
			} else {
				args = append(args, strings.Fields(part)...)
			}
		}
		code, stdout, stderr := run(t, "", args...)
		refused := strings.Contains(step.args, "delete --status pending")
		if (code != 0) != refused || !strings.Contains(stdout, step.want) {
			t.Errorf("%s: exit %d\n%s%s", step.args, code, stdout, stderr)
		}
		if refused && !strings.Contains(stderr, "must be done") {
			t.Errorf("%s: %s", step.args, stderr)
		}
	}
}

// A move by a duration must not be repeated from its beginning, so an interrupted one
// says how to go on.
func TestInterruptedMove(t *testing.T) {
	do := onDatabase(t)
	for _, id := range []string{"a", "b"} {
		do(0, "tasks", "add", "--id", id, "--queue", "q", "--delay", "1h")
	}
	db, _, err := config.OpenDB(config.URL(os.Getenv("RABBITDELAY_DATABASE_URL")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for moved := 0; moved == 0 && ctx.Err() == nil; <-time.After(10 * time.Millisecond) {
			_ = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE version = 2").Scan(&moved) // it asks again
		}
		cancel()
	}()
	var out, errs strings.Builder
	code := Run(ctx, strings.Fields("tasks reschedule --all --by 1h --yes --batch 1 --pause 1h"), strings.NewReader(""), &out, &errs)
	if code != 130 || !strings.HasPrefix(out.String(), "1 of 2 tasks moved in ") {
		t.Errorf("exit %d, %s", code, out.String())
	}
	_, after, _ := strings.Cut(errs.String(), "rabbitdelay: interrupted; to go on, give the same command with --after '")
	after, _, ok := strings.Cut(after, "': without it, tasks would be moved twice\n")
	if !ok {
		t.Fatalf("errors %s", errs.String())
	}
	do(0, "tasks", "reschedule", "--all", "--by", "1h", "--yes", "--after", after)
	stdout, _ := do(0, "tasks", "list", "--json")
	if strings.Count(stdout, `"version":2`) != 2 {
		t.Errorf("each was not moved once:\n%s", stdout)
	}
}

func TestTasksListSorts(t *testing.T) {
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+tasksDB(t))
	for _, id := range []string{"a", "b", "c"} {
		run(t, "", "tasks", "add", "--id", id, "--queue", "mail", "--delay", "1h")
	}
	run(t, "", "tasks", "cancel", "b")
	for sort, want := range map[string]string{"due-last": "cba", "ended": "b", "ended-last": "b"} {
		_, out, _ := run(t, "", "tasks", "list", "--sort", sort, "--json")
		var ids []string
		for line := range strings.Lines(out) {
			var task struct{ ID string }
			if err := json.Unmarshal([]byte(line), &task); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, task.ID)
		}
		if got := strings.Join(ids, ""); got != want {
			t.Errorf("--sort %s: %q, want %q: %s", sort, got, want, out)
		}
	}
}
