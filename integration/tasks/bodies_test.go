package tasks_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// awkward lists bodies that PostgreSQL would change or reject if a program passed them as text to a bytea column.
var awkward = []string{`{"re":"a\\d+"}`, `{"say":"\"yes\"\n"}`, `{"name":"\u5f20"}`, "it's\ntwo lines", `\x41`, `\`}

// viaPsycopg2 inserts arguments as the contract requires, as bytes and as text.
const viaPsycopg2 = `
import sys, psycopg2
c = psycopg2.connect(sys.argv[1])
due = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
with c, c.cursor() as x:
    for i, body in enumerate(sys.argv[2:]):
        q = "INSERT INTO rabbitdelay_tasks (id, queue, due_at, body) VALUES (%s, 'q', " + due + ", "
        x.execute(q + "convert_to(%s, 'UTF8'))", ("text-%d" % i, body))
        x.execute(q + "%s)", ("bytes-%d" % i, body.encode()))
`

// python is Debian's Python, which has Debian's modules. PATH may contain another Python before it.
const python = "/usr/bin/python3"

// Rows that psql and Python write with the statements of docs/tasks.md have unchanged bodies.
func TestBodiesOfOtherPrograms(t *testing.T) {
	run := func(t *testing.T, name string, stdin string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("running %s: %v\n%s", name, err, out)
		}
	}
	for name, x := range map[string]struct {
		program string
		write   func(t *testing.T, dsn string)
		ids     []string
	}{
		"psql": {"psql", func(t *testing.T, dsn string) {
			t.Helper()
			const insert = "INSERT INTO rabbitdelay_tasks (id, queue, due_at, body) VALUES " +
				"(:'id', 'q', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), convert_to(:'body', 'UTF8'));"
			for i, body := range awkward {
				run(t, "psql", insert, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", fmt.Sprintf("--set=id=text-%d", i), "--set=body="+body, dsn)
			}
		}, []string{"text"}},
		"psycopg2": {python, func(t *testing.T, dsn string) {
			t.Helper()
			if err := exec.CommandContext(t.Context(), python, "-c", "import psycopg2").Run(); err != nil {
				t.Skip("skipped: it needs psycopg2 (apt-get install python3-psycopg2)")
			}
			run(t, python, "", append([]string{"-c", viaPsycopg2, dsn}, awkward...)...)
		}, []string{"text", "bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(x.program); err != nil {
				t.Skipf("skipped: it needs %s", x.program)
			}
			db := openPgx(t)
			suite.MustSucceed(t, pgxtx.Migrate(t.Context(), db.pool))
			x.write(t, db.dsn)
			store, err := schedule.New(pgxtx.Database(db.pool), nil, schedule.Config{})
			suite.MustSucceed(t, err)
			for _, way := range x.ids {
				for i, body := range awkward {
					task, err := store.Get(t.Context(), schedule.NoTx, fmt.Sprintf("%s-%d", way, i))
					suite.MustSucceed(t, err)
					if string(task.Body) != body {
						t.Errorf("%s: stored body is %q, want %q", way, task.Body, body)
					}
				}
			}
		})
	}
}
