package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// deadLetters are n messages that died in a queue.
func deadLetters(queue string, n int, reason string) (list []amqp.Publishing) {
	for i := range n {
		list = append(list, amqp.Publishing{
			MessageId: fmt.Sprintf("%s-%d", queue, i), Body: []byte("body"),
			Headers: amqp.Table{amqpx.HeaderReason: reason, amqpx.HeaderQueue: queue, amqpx.HeaderError: "card rejected", "n": fmt.Sprint(i)},
		})
	}
	return list
}

func TestRequeue(t *testing.T) {
	b := newByHand(t)
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", append(deadLetters("q", 3, "rejected"), deadLetters("gone", 2, "attempts")...)...)
	before := len(b.Queues())

	code, stdout, stderr := b.run(t, "requeue", "--queue", "q.dead")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "give --yes") {
		t.Errorf("without --yes: exit %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--dry-run")
	if code != 2 || stderr != "" || !strings.Contains(stdout, "dry run: q.dead: looked at 5 of 5 messages") ||
		!strings.Contains(stdout, "        3 would be sent to q\n        2 would stay, for gone: the destination does not exist\n") {
		t.Errorf("dry run: exit %d, %q\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--yes", "--header", "n=1", "--destination", "q")
	if code != 0 || stderr != "" || !strings.Contains(stdout, ", 1 chosen\n        1 sent to q\n") {
		t.Errorf("one: exit %d, %q\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--yes", "--json")
	var got struct {
		Queue string `json:"queue"`
		inspect.RequeueReport
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 2 || stderr != "" || got.Queue != "q.dead" || got.Sent != 2 || got.Stayed != 2 || len(got.Results) != 2 {
		t.Errorf("--json: exit %d, %q, %v\n%s", code, stderr, err, stdout)
	}
	if q, _ := b.Queue("q.dead"); q.Ready != 2 {
		t.Errorf("%d dead letters are left", q.Ready)
	}
	if q, _ := b.Queue("q"); q.Ready != 3 {
		t.Errorf("%d messages came", q.Ready)
	}
	if after := b.Queues(); len(after) != before {
		t.Errorf("requeue declared queues: %v", after)
	}
	code, stdout, stderr = b.run(t, "requeue", "--queue", "q.dead", "--yes", "--to-queue", "q", "--limit", "1")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "looked at 1 of 2 messages") {
		t.Errorf("elsewhere: exit %d, %q\n%s", code, stderr, stdout)
	}
}

// Dead letters of tasks go by the database.
func TestRequeueTasks(t *testing.T) {
	b := newByHand(t)
	db := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	for _, args := range [][]string{
		{"migrate", "--db", db},
		{"tasks", "add", "--db", db, "--queue", "q", "--delay", "1h", "--id", "q-0"},
		{"tasks", "add", "--db", db, "--queue", "q", "--delay", "1h", "--id", "q-1"},
		{"tasks", "cancel", "--db", db, "q-1"},
	} {
		if code, _, stderr := run(t, "", args...); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, stderr)
		}
	}
	letters := deadLetters("q", 3, "attempts")
	for _, l := range letters {
		l.Headers[amqpx.HeaderVersion] = int64(1)
	}
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", letters...)
	code, stdout, _ := b.run(t, "requeue", "--queue", "q.dead", "--yes")
	if code != 2 || !strings.Contains(stdout, "3 stayed, for q: the row of its task decides; give the database") {
		t.Errorf("without a database: exit %d\n%s", code, stdout)
	}
	code, stdout, stderr := b.run(t, "requeue", "--queue", "q.dead", "--yes", "--db", db)
	lines := strings.Split(stdout, "\n")
	if code != 2 || stderr != "" || len(lines) != 5 || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "        1 removed, because their tasks are over") }) {
		t.Errorf("exit %d, %s\n%s", code, stderr, stdout)
	}
	if q, _ := b.Queue("q"); q.Ready != 1 { // q-0 is pending, and the message has its version
		t.Errorf("%d messages came", q.Ready)
	}
}

// Reviving a task takes its dead letter away, and no other message.
func TestReviveRemovesTheDeadLetter(t *testing.T) {
	b := newByHand(t)
	db := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	code, _, stderr := run(t, "", "migrate", "--db", db)
	for i := range 3 {
		if code == 0 {
			code, _, stderr = run(t, "", "tasks", "add", "--db", db, "--queue", "q", "--delay", "1h", "--id", fmt.Sprint("q-", i))
		}
	}
	if code != 0 {
		t.Fatal(stderr)
	}
	letters := deadLetters("q", 4, "attempts") // q-3 is no task's
	for _, l := range letters[:3] {
		l.Headers[amqpx.HeaderVersion] = int64(1)
	}
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", letters...)
	fail := func(id string) {
		t.Helper()
		x, _, err := config.OpenDB(config.URL(db))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = x.Close() }()
		if _, err := x.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE id = ?", id); err != nil {
			t.Fatal(err)
		}
	}
	fail("q-0")
	if code, stdout, stderr := b.run(t, "tasks", "revive", "q-0", "--db", db); code != 0 || !strings.Contains(stdout, "q-0: pending") || !strings.Contains(stdout+stderr, "1 dead letter without an effect any more removed from q.dead") {
		t.Errorf("by its id: exit %d, %q, %q", code, stdout, stderr)
	}
	fail("q-1")
	if code, stdout, stderr := b.run(t, "tasks", "revive", "--queue", "q", "--yes", "--db", db); code != 0 || !strings.Contains(stdout+stderr, "1 dead letter without an effect any more removed from q.dead") {
		t.Errorf("by a filter: exit %d, %q, %q", code, stdout, stderr)
	}
	if q, _ := b.Queue("q.dead"); q.Ready != 2 {
		t.Errorf("%d dead letters are left, expected the two that were not revived", q.Ready)
	}
	if q, _ := b.Queue("q"); q.Ready != 0 {
		t.Errorf("%d messages came", q.Ready)
	}
	fail("q-2")
	b.Close()
	if code, stdout, stderr := b.run(t, "tasks", "revive", "q-2", "--db", db); code != 0 || !strings.Contains(stdout, "q-2: pending") {
		t.Errorf("without a broker: exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestRequeueUsage(t *testing.T) {
	b := newByHand(t)
	for args, want := range map[string]string{
		"":                                       "give one of --queue, --parked and --from",
		"--queue q --parked":                     "give one of --queue, --parked and --from",
		"--queue q --to-queue a --to-exchange b": "give one destination",
		"--queue q --routing-key b":              "--routing-key is for --to-exchange",
		"--queue q --in-flight 0":                "expected 1 to 1000",
		"--queue q --in-flight 2000":             "--in-flight: 2000; expected 1 to 1000",
		"--queue q --reason bogus":               `--reason: "bogus"; expected rejected, attempts,`,
		"--queue q --header n":                   "expected name=value",
		"--queue q --to-queue q":                 `--to-queue: "q"; expected another queue`,
		"--queue delay.bucket.1s":                "on their way",
		"--queue q --rate -1":                    "0 or more",
		"--queue q --limit -1":                   "0 or more",
		"--queue nowhere":                        "no queue 'nowhere'",
		"--queue q --db sqlite:/none/x.db":       "database",
	} {
		code, stdout, stderr := b.run(t, strings.Fields("requeue --yes "+args)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %q, %q; want %q", args, code, stdout, stderr, want)
		}
	}
}

// A dry run that is refused says why, and nothing of messages at which it looked.
func TestRequeueDryRunRefused(t *testing.T) {
	b := newByHandOf(t, amqptest.Options{Version: "4.0.5"})
	b.fillWith(t, "q.dead", deadLetters("q", 3, "rejected")...)
	code, stdout, stderr := b.run(t, "requeue", "--queue", "q.dead", "--dry-run")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "broker.management_url") || strings.Contains(stderr, "again") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

// A revive that revives nothing leaves the broker alone.
func TestReviveOfNothing(t *testing.T) {
	b := newByHand(t)
	db := "sqlite:" + tasksDB(t)
	for args, code := range map[string]int{"none": 1, "--queue q": 1, "--queue q --yes --batch 9999": 1, "--queue q --yes": 0} {
		got, stdout, stderr := b.run(t, append([]string{"tasks", "revive", "--db", db}, strings.Fields(args)...)...)
		if got != code || b.Calls("connection.open") > 0 {
			t.Errorf("%s: exit %d, %d connections\n%s%s", args, got, b.Calls("connection.open"), stdout, stderr)
		}
	}
}

// What cannot be read stays, is named, and goes when somebody discards it.
func TestDiscard(t *testing.T) {
	b := newByHand(t)
	bad := deadLetters("q", 1, "rejected")
	bad[0].MessageId, bad[0].Headers["ids"] = "bad", make([]any, 9000)
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", append(deadLetters("q", 2, "rejected"), bad...)...)
	file := filepath.Join(t.TempDir(), "bad.jsonl")

	if code, stdout, stderr := b.run(t, "peek", "--queue", "q.dead"); code != 0 || !strings.Contains(stdout, "3. bad\n   reason   unreadable\n") {
		t.Errorf("peek: exit %d, %q\n%s", code, stderr, stdout)
	}
	for _, c := range []struct {
		args, says string
		code       int
		left       int
	}{
		{"requeue --yes", "1 stayed, for an unknown destination: its headers cannot be read", 2, 1},
		{"consume --count 1 --timeout 20s", "message bad cannot be read, and the message goes back to the queue", 1, 1},
		{"discard --no-save", "give --yes", 1, 1},
		{"discard --yes", "give --save for the messages", 1, 1},
		{"discard --yes --save x --no-save", "give --save for the messages", 1, 1},
		{"discard --reason rejected --dry-run", "looked at 1 of 1 message in", 0, 1},
		{"discard --reason unreadable --dry-run", "1 would be discarded", 0, 1},
		{"discard --reason unreadable --yes --save " + file, "1 discarded", 0, 0},
	} {
		code, stdout, stderr := b.run(t, append(strings.Fields(c.args), "--queue", "q.dead")...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) || b.ready(t, "q.dead") != c.left {
			t.Errorf("%s: exit %d, %d left, %q\n%s", c.args, code, b.ready(t, "q.dead"), stderr, stdout)
		}
	}
	code, stdout, stderr := b.run(t, "requeue", "--from", file, "--yes")
	if code != 2 || !strings.Contains(stdout, "1 stayed, for an unknown destination: its headers cannot be read, wherever it goes") || !strings.Contains(stdout, "(line 1)") {
		t.Errorf("back: exit %d, %q\n%s", code, stderr, stdout)
	}
}

// What was discarded is in a file that its owner alone may read, and from there it goes back,
// mended or not.
func TestDiscardAndSendAgain(t *testing.T) {
	b := newByHand(t)
	b.fill(t, "q", 0)
	letters := append(deadLetters("q", 3, "rejected"), deadLetters("gone", 1, "rejected")...)
	letters[1].Body = []byte{0, 0xff}
	b.fillWith(t, "q.dead", letters...)
	file := filepath.Join(t.TempDir(), "q.jsonl")

	code, stdout, stderr := b.run(t, "discard", "--queue", "q.dead", "--yes", "--save", file)
	if code != 0 || !strings.Contains(stdout, "3 discarded, of q\n") || !strings.Contains(stderr, "4 messages are in "+file) || b.ready(t, "q.dead") != 0 {
		t.Fatalf("discard: exit %d, %q\n%s", code, stderr, stdout)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	b.fillWith(t, "q.dead", deadLetters("q", 1, "rejected")...)
	code, _, stderr = b.run(t, "discard", "--queue", "q.dead", "--yes", "--save", file)
	if code != 1 || !strings.Contains(stderr, file+" is there already, and no file is written over") || b.ready(t, "q.dead") != 1 {
		t.Errorf("an existing file: exit %d, %q", code, stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mended := strings.Replace(string(text), `"body":"body"`, `"body":"mended"`, 1)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(mended[:len(mended)-20])
	code, _, stderr = b.run(t, "requeue", "--from", file, "--yes")
	if code != 1 || !strings.Contains(stderr, file+":4: it is cut off") || !strings.Contains(stderr, "nothing was sent") || b.ready(t, "q") != 0 {
		t.Errorf("cut off: exit %d, %q", code, stderr)
	}
	write(mended)
	code, stdout, stderr = b.run(t, "requeue", "--from", file, "--dry-run")
	if code != 2 || !strings.Contains(stdout, "3 would be sent to q\n") || !strings.Contains(stdout, "1 would stay, for gone: the destination does not exist (line 4)") || b.ready(t, "q") != 0 {
		t.Errorf("dry: exit %d, %q\n%s", code, stderr, stdout)
	}
	code, _, stderr = b.run(t, "requeue", "--from", file, "--skip", "5", "--yes")
	if want := "--skip: 5; expected at most 4, the lines of " + file + "; nothing was sent"; code != 1 || !strings.Contains(stderr, want) {
		t.Errorf("beyond the end: exit %d, %q, expected %q", code, stderr, want)
	}
	if code, _, stderr = b.run(t, "requeue", "--from", file, "--skip", "4", "--yes"); code != 0 || b.ready(t, "q") != 0 {
		t.Errorf("at the end: exit %d, %q", code, stderr)
	}
	code, stdout, stderr = b.run(t, "requeue", "--from", file, "--skip", "1", "--destination", "q", "--yes", "--json")
	if code != 0 || !strings.Contains(stdout, `"from":"`+file+`"`) || !strings.Contains(stdout, `"sent":2,`) || !strings.Contains(stdout, `"line":4`) {
		t.Errorf("the others: exit %d, %q\n%s", code, stderr, stdout)
	}
	if code, stdout, stderr = b.run(t, "requeue", "--from", file, "--id", "q-0", "--yes"); code != 0 {
		t.Errorf("one: exit %d, %q\n%s", code, stderr, stdout)
	}
	code, stdout, _ = b.run(t, "peek", "--queue", "q", "--json")
	var bodies []string
	for line := range strings.Lines(stdout) {
		var m struct {
			ID, Body string
			Base64   string `json:"body_base64"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, m.ID+" "+m.Body+m.Base64)
	}
	if want := []string{"q-1 AP8=", "q-2 body", "q-0 mended"}; code != 0 || !slices.Equal(bodies, want) {
		t.Errorf("exit %d, came %q, want %q", code, bodies, want)
	}
}

// Where there is a database, the audit has who did what, and what came of it; where it cannot be
// written, nothing is done.
func TestCommandsAreInTheAudit(t *testing.T) {
	b := newByHand(t)
	dir := t.TempDir()
	db := "sqlite:" + filepath.Join(dir, "tasks.db")
	for _, args := range [][]string{{"migrate", "--db", db}, {"tasks", "add", "--db", db, "--queue", "q", "--delay", "1h", "--id", "t"}} {
		if code, _, stderr := run(t, "", args...); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, stderr)
		}
	}
	b.fill(t, "q", 0)
	b.fillWith(t, "q.dead", append(deadLetters("q", 2, "rejected"), deadLetters("gone", 1, "attempts")...)...)
	for _, args := range []string{
		"requeue --queue q.dead --header n=secret --yes", "requeue --queue q.dead --dry-run", "requeue --queue q.dead --id q-0 --yes --actor ann",
		"discard --queue q.dead --destination q --yes --no-save --actor ann", "discard --queue q.dead --yes --save " + dir + " --actor ann",
		"tasks cancel --queue q --yes --actor bob",
	} {
		b.run(t, append(strings.Fields(args), "--db", db)...)
	}
	x, _, err := config.OpenDB(config.URL(db))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	rows, err := x.QueryContext(t.Context(), "SELECT who, action, target, detail, result, error, (SELECT COUNT(*) FROM rabbitdelay_audit_tasks WHERE audit_id = id), done, place <> '' FROM rabbitdelay_audit ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	want := []string{
		"@|requeue|q.dead|header n|3 looked at, 0 sent, 0 revived, 0 removed, 0 stayed||0 0 false",
		"ann|requeue|q.dead|id q-0|3 looked at, 1 sent, 0 revived, 0 removed, 0 stayed||0 0 false",
		"ann|discard|q.dead|destination q|2 looked at, 1 discarded, 0 stayed||0 0 false",
		"ann|discard|q.dead|into " + dir + "|0 looked at, 0 discarded, 0 stayed|--save: " + dir + " is there already, and no file is written over; give another name|0 0 false",
		"bob|bulk.cancel||queue=q|1 task changed||1 1 true",
	}
	var got []string
	for rows.Next() {
		var who, action, target, detail, result, why string
		var tasks, done int
		var placed bool // where a run that was killed can be gone on with
		if err := rows.Scan(&who, &action, &target, &detail, &result, &why, &tasks, &done, &placed); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(who, "@") {
			who = "@"
		}
		got = append(got, strings.Join([]string{who, action, target, detail, result, why, fmt.Sprint(tasks, done, placed)}, "|"))
	}
	if rows.Err() != nil || !slices.Equal(got, want) {
		t.Errorf("%v\n%s\nwant\n%s", rows.Err(), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := x.ExecContext(t.Context(), "DROP TABLE rabbitdelay_audit"); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := b.run(t, "discard", "--queue", "q.dead", "--yes", "--no-save", "--db", db)
	if code != 1 || !strings.Contains(stderr, "nothing was done, because it could not be recorded") || b.ready(t, "q.dead") != 1 {
		t.Errorf("without the table: exit %d, %q", code, stderr)
	}
}
