package tasks_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// cliURL returns the database URL for the flag --db.
func cliURL(t *testing.T, db businessDB) string {
	t.Helper()
	switch db.dialect {
	case idempotency.PostgreSQL:
		return db.dsn
	case idempotency.MySQL:
		cfg, err := mysql.ParseDSN(db.dsn)
		suite.MustSucceed(t, err)
		u := url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + cfg.DBName}
		return u.String()
	}
	file, _, _ := strings.Cut(db.dsn, "?")
	return "sqlite:" + strings.TrimPrefix(file, "file:")
}

// wantFields checks the given fields of each object.
func wantFields(t *testing.T, what string, got, want []map[string]any) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d objects, want %d: %v", what, len(got), len(want), got)
	}
	for i, fields := range want {
		for key, value := range fields {
			if got[i][key] != value {
				t.Errorf("%s: object %d has %s %v, want %v", what, i, key, got[i][key], value)
			}
		}
	}
}

func TestCLITasks(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		at := cliURL(t, db)
		cmd := func(args ...string) suite.Ran {
			r := suite.RunCLI(t.Context(), append(append([]string{"tasks"}, args...), "--db", at)...)
			if u, err := url.Parse(at); err == nil {
				if password, ok := u.User.Password(); ok && password != "" && strings.Contains(r.Stdout+r.Stderr, ":"+password+"@") {
					t.Errorf("the output contains the password, want it redacted:\n%s", r)
				}
			}
			return r
		}
		db.mustExec(t, "CREATE TABLE others (a INTEGER)") // SQLite creates the file with the first table
		if r := cmd("list"); r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "run the migrations first") {
			t.Fatalf(`without the table: got %s, want "run the migrations first"`, r)
		}
		s := newStore(t, db, nil, schedule.Config{})
		base := time.Now().Add(time.Hour).Truncate(time.Hour)
		var tasks []schedule.Task
		for i := range 120 {
			x := orderTask(fmt.Sprintf("%c-%03d", 'a'+i%2, i), base.Add(time.Duration(i)*time.Minute))
			x.Queue = []string{"q1", "q2"}[i%2]
			tasks = append(tasks, x)
		}
		tasks = append(tasks, schedule.Task{
			ID: "x\x1b[31m", Exchange: "events", RoutingKey: "k", DeliverAt: base.Add(24 * time.Hour),
			Body: []byte{0xff}, Headers: map[string]string{"a": "b"},
		})
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
		suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, "a-000"))
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'failed', last_error = 'boom', attempts = 3, finished_at = 1 WHERE id = 'b-001'")
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = 1 WHERE id = 'a-002'")

		// Each key has the arguments for list, and each value is the number of selected tasks.
		for args, want := range map[string]int{
			"": 121, "--queue q1": 60, "--status pending": 118, "--status failed": 1, "--id-prefix b-": 60, "--limit 7": 7,
			"--queue q2 --status failed --id-prefix b-0": 1,
			"--due-from " + base.Add(10*time.Minute).Format(time.RFC3339) + " --due-to " + base.Add(20*time.Minute).Format(time.RFC3339): 10,
			"--due-from now --due-to 20h": 120,
		} {
			r := cmd(strings.Fields("list --json " + args)...)
			if got := r.Objects(t); r.Code != 0 || r.Stderr != "" || len(got) != want {
				t.Errorf("list %s: got %d tasks, exit code %d and Stderr %q, want %d tasks, exit code 0 and no errors", args, len(got), r.Code, r.Stderr, want)
			}
		}
		if r := cmd("list", "--json", "--queue", "none"); r.Code != 0 || r.Stdout != "" {
			t.Errorf(`list without results: got %s, want exit code 0 and Stdout = ""`, r)
		}
		r := cmd("list")
		if r.Code != 0 || len(r.Lines()) != 101 || !strings.HasPrefix(r.Stdout, "ID ") || !strings.Contains(r.Stderr, "more than 100; --limit 0 lists all") {
			t.Errorf(`tasks list without --json: got %s, want exit code 0, 101 lines, Stdout beginning with "ID " and Stderr with "more than 100; --limit 0 lists all"`, r)
		}
		if r := cmd("list", "--limit", "0"); len(r.Lines()) != 122 || strings.Contains(r.Stdout, "\x1b") || r.Stderr != "" {
			t.Errorf(`list --limit 0: got %d lines and Stderr = %q, want 122 lines without escape sequences and Stderr = ""`, len(r.Lines()), r.Stderr)
		}

		// show
		r = cmd("show", "--json", "b-001", "x\x1b[31m", "none")
		got := r.Objects(t)
		if r.Code != 1 {
			t.Errorf("show: exit code %d, want 1: %s", r.Code, r)
		}
		wantFields(t, "show", got, []map[string]any{
			{"body": "b-001", "status": "failed", "last_error": "boom", "attempts": 3.0},
			{"body_base64": "/w==", "exchange": "events"},
			{"id": "none"},
		})
		if text := got[2]["error"].(string); !strings.Contains(text, "task not found") {
			t.Errorf(`show: the error is %q, want it to contain "task not found"`, text)
		}
		if r := cmd("show", "b-001"); r.Code != 0 || !strings.Contains(r.Stdout, "last error   boom\n") {
			t.Errorf("show: got %s, want exit code 0 and Stdout with %q", r, "last error   boom\n")
		}

		// count
		r = cmd("count", "--json")
		got = r.Objects(t)
		if r.Code != 0 || len(got) != 7 || got[6]["total"] != 121.0 || fmt.Sprint(got[5]) != "map[count:59 queue:q2 status:pending]" {
			t.Errorf(`count: got %s, want exit code 0 and 7 objects, the last two {"count":59,"queue":"q2","status":"pending"} and {"total":121}`, r)
		}
		r = cmd("count", "--json", "--per", "1h", "--status", "pending", "--due-from", base.Format(time.RFC3339),
			"--due-to", base.Add(150*time.Minute).Format(time.RFC3339))
		got = r.Objects(t)
		if r.Code != 0 || len(got) != 4 || got[0]["count"] != 57.0 || got[1]["count"] != 60.0 || got[2]["count"] != 0.0 || got[3]["total"] != 117.0 {
			t.Errorf(`histogram: got %s, want exit code 0, the counts 57, 60 and 0, and the total 117`,
				r)
		}

		// Commands that change tasks, and cases in which they fail.
		r = cmd("reschedule", "a-004", "--at", "2030-01-01T00:00:00Z", "--json")
		if r.Code != 0 {
			t.Errorf("reschedule: exit code %d, want 0: %s", r.Code, r)
		}
		wantFields(t, "reschedule", r.Objects(t), []map[string]any{{"due": "2030-01-01T00:00:00.000Z", "version": 2.0}})
		if r := cmd("run", "a-004"); r.Code != 0 || !strings.HasPrefix(r.Stdout, "a-004: pending, due ") {
			t.Errorf(`run: got %s, want exit code 0 and Stdout beginning with "a-004: pending, due "`, r)
		}
		if got := taskOf(t, s, "a-004"); got.Version != 3 || time.Since(got.DeliverAt).Abs() > time.Minute {
			t.Errorf("after run: got %+v, want Version = 3 and DeliverAt within 1m of now", got)
		}
		if r := cmd("revive", "b-001", "--delay", "1h"); r.Code != 0 {
			t.Errorf("revive: exit code %d, want 0: %s", r.Code, r)
		}
		if got := taskOf(t, s, "b-001").Status; got != schedule.StatusPending {
			t.Errorf("after revive: the task is %s, want %s", got, schedule.StatusPending)
		}
		if got := time.Until(taskOf(t, s, "b-001").DeliverAt); got < 50*time.Minute {
			t.Errorf("after revive: the task is due in %v, want about 1h", got)
		}
		r = cmd("cancel", "a-002", "b-001", "none", "a-006", "--json")
		got = r.Objects(t)
		if r.Code != 1 {
			t.Errorf("cancel: exit code %d, want 1: %s", r.Code, r)
		}
		wantFields(t, "cancel", got, []map[string]any{{}, {"status": "cancelled"}, {}, {"status": "cancelled"}})
		if got := taskOf(t, s, "a-006").Status; got != schedule.StatusCancelled {
			t.Errorf("after cancel: a-006 is %s, want %s", got, schedule.StatusCancelled)
		}
		for args, want := range map[string]string{
			"cancel a-002":                "cannot cancel task a-002: its status is done, expected pending; the task is done; to repeat it, schedule a task with another id",
			"cancel a-000":                "cannot cancel task a-000: its status is cancelled, expected pending; there is nothing to do",
			"cancel none":                 `cannot cancel task none: task not found; "rabbitdelay tasks list" shows`,
			"reschedule a-000 --delay 1s": "cannot reschedule task a-000: its status is cancelled, expected pending; to run the task after all, schedule",
			"run none":                    "cannot run task none: task not found",
			"revive a-008":                "cannot revive task a-008: its status is pending, expected failed; the task is still waiting; use reschedule or run",
		} {
			if r := cmd(strings.Fields(args)...); r.Code != 1 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "rabbitdelay: "+want) {
				t.Errorf("%s: got %s, want exit code 1, no Stdout and Stderr beginning with %q", args, r, "rabbitdelay: "+want)
			}
		}
	})
}

// relaying runs the serve command until stop is called. stop returns the command's output.
func relaying(t *testing.T, args ...string) (stop func() suite.Ran) {
	t.Helper()
	at := broker.Shared(t, broker.Options{}).URL() // may skip the test, which is only allowed in the test's own goroutine
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan suite.Ran, 1)
	go func() {
		ended <- suite.RunCLI(ctx, append([]string{"serve", "--json", "--listen", "127.0.0.1:0", "--url", at}, args...)...)
	}()
	var result suite.Ran
	done := false
	stop = func() suite.Ran {
		cancel()
		if !done {
			done, result = true, <-ended
		}
		return result
	}
	t.Cleanup(func() { stop() })
	return stop
}

// Tasks that a program inserted with plain SQL arrive in their queue when they are due. When its context is cancelled,
// as on SIGTERM, the relay stops and prints its result.
func TestCLIRelay(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		at := cliURL(t, db)
		// On PostgreSQL, the relay polls so rarely that only a notification can wake it.
		poll := "100ms"
		if db.dialect == idempotency.PostgreSQL {
			poll = "1h"
		}
		stop := relaying(t, "--db", at, "--poll", poll)
		queue := suite.NewQueue(t)
		client := suite.OpenClient(t, amqpx.Config{})
		got := make(chan *amqpx.Delivery, 10)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- client.Consume(ctx, queue, func(_ context.Context, d *amqpx.Delivery) error { got <- d; return nil })
		}()
		defer func() { cancel(); suite.MustSucceed(t, <-ended) }()
		const n = 5
		for i := range n { // one at a time, because the relay has to notice each of them separately
			id := fmt.Sprintf("plain-%d", i)
			due := time.Now().Add(time.Duration(i) * 200 * time.Millisecond).UnixMilli()
			db.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at, body) VALUES (?, ?, ?, ?)", id, queue, due, []byte("hello"))
			select {
			case d := <-got:
				if d.ID != id || d.Version != 1 || d.DueAt.UnixMilli() != due || string(d.Body) != "hello" {
					t.Errorf(`got %+v, want the id %v, version 1, due at %v ms, and the body "hello"`, d, id, due)
				}
				if now := time.Now().UnixMilli(); now < due {
					t.Errorf("task %s arrived at %d ms, before it was due at %d ms", id, now, due)
				}
			case <-time.After(suite.Patience):
				t.Fatalf("task %s did not arrive: %s", id, stop())
			}
		}
		// The relay marks a row after its confirm, which can be after its delivery.
		suite.Eventually(t, "all tasks are marked as sent", func() bool {
			return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends = 1") == n
		})
		if r := cmdTasks(t, at, "list", "--json", "--status", "pending"); len(r.Objects(t)) != n || r.Objects(t)[0]["sends"] != 1.0 {
			t.Errorf(`list: got %s, want %v objects, the first with "sends": 1`, r, n)
		}
		// Another program inserted this row. Schedule would refuse a queue name that is too long for a routing key.
		db.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('bad', ?, ?)", strings.Repeat("q", 250), time.Now().UnixMilli())
		suite.Eventually(t, "a task that cannot be sent fails", func() bool { return taskOf(t, s, "bad").Status == schedule.StatusFailed })
		r := stop()
		m := r.Last(t, "relayed", "resent", "postponed", "failed", "purged", "errors", "seconds")
		if r.Code != 0 || m["relayed"] != 5.0 || m["failed"] != 1.0 || m["errors"] != 0.0 {
			t.Errorf(`relay: got %s, want exit code 0, "relayed": 5, "failed": 1 and "errors": 0`, r)
		}
		if !strings.Contains(r.Stderr, `"relaying tasks"`) || !strings.Contains(r.Stderr, "stopping") || strings.Contains(r.Stderr, "guest:guest") {
			t.Errorf(`logs: got %s, want them to contain "relaying tasks" and "stopping", but not "guest:guest"`, r.Stderr)
		}
	})
}

func cmdTasks(t *testing.T, at string, args ...string) suite.Ran {
	t.Helper()
	return suite.RunCLI(t.Context(), append(append([]string{"tasks"}, args...), "--db", at)...)
}

// If settings or a SQLite file keep serve from starting, it reports the reason immediately.
func TestCLIServeCannotStart(t *testing.T) {
	t.Parallel()
	empty := openSQLite(t)
	empty.mustExec(t, "CREATE TABLE others (a INTEGER)")
	for want, args := range map[string][]string{
		"unable to open database file":   {"--db", "sqlite:" + t.TempDir() + "/none.db"},
		"run the migrations first":       {"--db", cliURL(t, empty)},
		"expected a database URL":        {"--db", "oracle://u:hunter2@h/d"},
		"unexpected argument \"orders\"": {"orders"},
	} {
		r := suite.RunCLI(t.Context(), append([]string{"serve", "--listen", "127.0.0.1:0", "--url", "amqp://127.0.0.1:1/"}, args...)...)
		if r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, want) || strings.Contains(r.Stderr, "hunter2") {
			t.Errorf("serve %s: got %s, want exit code 1, no Stdout, and Stderr containing %q but no password", args, r, want)
		}
	}
}
