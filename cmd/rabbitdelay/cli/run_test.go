package cli

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
)

// run executes a command line in-process.
func run(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = Run(t.Context(), args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"fly", `unknown command "fly"; see rabbitdelay --help`},
		{"plan x", `unexpected argument "x"; see rabbitdelay plan --help`},
		{"send --speed", "unknown flag: --speed; see rabbitdelay send --help; did you mean --spread?"},
		{"send", "no destination; give --queue, or --exchange and --routing-key"},
		{"send --queue q --exchange e", "both --queue and --exchange or --routing-key; give one destination"},
		{"send --queue q --delay 1s --at 2030-01-01T00:00:00Z", "both --delay and --at; give one"},
		{"send --queue q --delay 10", `invalid argument "10" for "--delay" flag: expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got "10"; see rabbitdelay send --help`},
		{"send --queue q --at tomorrow", `invalid argument "tomorrow" for "--at" flag: "tomorrow" is no instant; expected one such as 2026-12-24T08:00:00Z, "tomorrow 08:00 Europe/Berlin" or +90m; see rabbitdelay send --help`},
		{"send --queue q --count 0", "--count: 0; expected 1 or more"},
		{"send --queue q --concurrency 0", "--concurrency: 0; expected 1 to 1024"},
		{"send --queue q --delay -1s", "--delay: -1s; expected 0 or more"},
		{"send --queue q --tolerance -1s", "--tolerance: -1s; expected 0 or more"},
		{"send --queue q --spread -1s", "--spread: -1s; expected 0 or more"},
		{"send --queue q --timeout -1s", "--timeout: -1s; expected 0 or more"},
		{"send --queue q --header novalue", `--header: expected name=value, got "novalue"`},
		{"send --queue q --body @/none", "--body: open /none: no such file or directory"},
		{"send --queue q --log-level loud", `--log-level: "loud"; expected debug, info, warn or error`},
		{"send --queue q --strategy fast", `--strategy: delay.strategy: "fast"; expected auto, bucket, ttl, plugin or native`},
		{"send --queue q --queue-type stream", `--queue-type: delay.queue_type: "stream"; expected quorum or classic`},
		{"send --queue q -f /none.yaml", "/none.yaml: cannot be read: no such file or directory"},
		{"consume", "no queue; give --queue"},
		{"consume --queue q --count 0", "--count: 0; expected 1 or more; without --count there is no end"},
		{"consume --queue q --timeout -1s", "--timeout: -1s; expected more than 0; without --timeout there is none"},
		{"tasks reschedule --queue q --delay 1h --after 1/a", "--after goes with --by alone: a move to an instant that is given again moves nothing twice"},
		{"consume --queue q --prefetch 0", "--prefetch: 0; expected 1 to 65535"},
		{"migrate", "no database; give --db, or database.url in the file"},
		{"migrate --db oracle://x", "--db: database.url: expected a database URL: postgres://…, mysql://… or sqlite:path"},
	} {
		code, stdout, stderr := run(t, "", strings.Fields(c.args)...)
		if code != 1 || stdout != "" || stderr != "rabbitdelay: "+c.want+"\n" {
			t.Errorf("%s: exit %d, output %q, errors:\n%swant:\nrabbitdelay: %s", c.args, code, stdout, stderr, c.want)
		}
		code, stdout, stderr = run(t, "", append(strings.Fields(c.args), "--json")...)
		var e struct{ Error string }
		if err := json.Unmarshal([]byte(stderr), &e); err != nil || code != 1 || stdout != "" || e.Error != c.want {
			t.Errorf("%s --json: exit %d, output %q, errors %s", c.args, code, stdout, stderr)
		}
	}
}

// No output has the password of a broker that cannot be reached.
func TestUnreachableBroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "amqp://user:hunter2@" + l.Addr().String() + "/"
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"plan"}, {"apply"}, {"destroy", "--yes"},
		{"send", "--queue", "q", "--timeout", "300ms"},
		{"consume", "--queue", "q", "--timeout", "300ms"},
		{"send", "--queue", "q", "--strategy", "plugin", "--timeout", "300ms"},
	} {
		code, stdout, stderr := run(t, "", append(args, "--url", url, "--log-level", "debug")...)
		if code != 1 || !strings.Contains(stderr, "connection refused") {
			t.Errorf("%v: exit %d, errors %s", args, code, stderr)
		}
		if strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%v: the password is in the output:\n%s%s", args, stdout, stderr)
		}
	}
}

func TestMigratePrint(t *testing.T) {
	for _, db := range []string{"postgres:", "mysql:", "sqlite:"} {
		code, stdout, stderr := run(t, "", "migrate", "--db", db, "--print")
		if code != 0 || !strings.Contains(stdout, "rabbitdelay_processed") || !strings.Contains(stdout, "rabbitdelay_tasks") || stderr != "" {
			t.Errorf("%s: exit %d, errors %s, output:\n%s", db, code, stderr, stdout)
		}
		var script struct{ Database, SQL string }
		code, asJSON, stderr := run(t, "", "migrate", "--db", db, "--print", "--json")
		if err := json.Unmarshal([]byte(asJSON), &script); err != nil || code != 0 || script.SQL+"\n" != stdout {
			t.Errorf("%s with --json: exit %d, %v, errors %s, output:\n%s", db, code, err, stderr, asJSON)
		}
	}
}

func TestMigrateSQLite(t *testing.T) {
	db := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	for range 2 {
		code, stdout, stderr := run(t, "", "migrate", "--db", db, "--json")
		if code != 0 || !strings.HasPrefix(stdout, `{"database":"sqlite","migrated":["idempotency","schedule"]`) {
			t.Errorf("exit %d, output %s, errors %s", code, stdout, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := run(t, "", "version")
	if code != 0 || !strings.HasPrefix(stdout, "rabbitdelay ") {
		t.Errorf("exit %d, output %s", code, stdout)
	}
	code, stdout, _ = run(t, "", "version", "--json")
	var b build
	if err := json.Unmarshal([]byte(stdout), &b); err != nil || code != 0 || b.Version == "" || b.Go == "" {
		t.Errorf("exit %d, output %s", code, stdout)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, _ := run(t, "", "completion", shell); code != 0 || !strings.Contains(stdout, "rabbitdelay") {
			t.Errorf("%s: exit %d", shell, code)
		}
	}
	if _, stdout, _ := run(t, "", "__complete", "send", "--strategy", ""); !strings.HasPrefix(stdout, "bucket\nttl\nplugin\nnative\nauto\n") {
		t.Errorf("--strategy completes to %s", stdout)
	}
}

func TestInterruptedBeforeStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs strings.Builder
	code := Run(ctx, []string{"send", "--queue", "q", "--url", "amqp://127.0.0.1:1/", "--log-level", "error"}, strings.NewReader(""), &out, &errs)
	if code != program.ExitInterrupt || errs.String() != "rabbitdelay: interrupted\n" {
		t.Errorf("exit %d, errors %s", code, errs.String())
	}
}

// No command's help shows a default that says nothing, or Go's words for a type.
func TestHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		_, text, _ := run(t, "", append(strings.Fields(c.CommandPath())[1:], "--help")...)
		_, flags, ok := strings.Cut(text, "\nFlags:\n")
		if !ok {
			t.Errorf("the help of %q has no flags", c.CommandPath())
		}
		for _, bad := range []string{"(default 0", "(default [])", "stringArray"} {
			if strings.Contains(flags, bad) {
				t.Errorf("the help of %q has %q", c.CommandPath(), bad)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(command(program.New(&term.Terminal{})))
}
