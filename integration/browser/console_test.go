package browser

import (
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres" // the drivers of the tests' databases
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// shared starts a site with SQLite and the broker that most tests share.
func shared(t *testing.T, delay string) *site {
	t.Helper()
	openBrowser(t)
	path := filepath.Join(t.TempDir(), "tasks.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(180000)&_pragma=journal_mode(WAL)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return newSite(t, broker.Shared(t, broker.Options{Management: true}), delay, "sqlite:"+path, db)
}

// pages lists the paths of all pages.
var pages = []string{
	"", "tasks", "tasks?queue=mail&status=pending", "task?id=a", "trace?id=a", "trace", "recurring",
	"recurring-task?name=nightly", "dead", "dead-queue?queue=mail.dead", "dead-errors?queue=mail.dead", "layouts",
	"audit",
}

// TestConsole follows an operator through pages and actions.
func TestConsole(t *testing.T) {
	s := shared(t, layout)
	s.add(t, "mail", "a", "b", "c", "d", `<script>document.title = "caught"</script>`)
	if _, err := s.channel(t).QueuePurge("mail.dead", false); err != nil { // removes messages of an earlier run
		t.Fatal(err)
	}
	s.die(t, "mail", "dead-1", "dead-2")
	anna := s.open(t, "anna")

	t.Run("tasks", func(t *testing.T) { anna.with(t).changeTasks() })
	t.Run("selected tasks", func(t *testing.T) { anna.with(t).selectTasks() })
	t.Run("recurring", func(t *testing.T) { anna.with(t).changeRecurring() })
	t.Run("dead letters", func(t *testing.T) { anna.with(t).requeue() })
	t.Run("layouts", func(t *testing.T) { anna.with(t).retire() })
	t.Run("pages", func(t *testing.T) {
		b := anna.with(t)
		for _, path := range pages {
			if code := b.visit(path); code != http.StatusOK {
				t.Errorf("%s: got %d, want 200", path, code)
			}
			if title := eval[string](b, "document.title"); !strings.HasSuffix(title, " · rabbitdelay") {
				t.Errorf(`page %s: the title is %q, want it to end with " · rabbitdelay"`, path, title)
			}
			for _, width := range []int64{1440, 1280, 1024, 768, 390, 320} {
				b.window(width, 800, 1, "light")
				if got := eval[int64](b, "document.documentElement.scrollWidth"); got > width {
					t.Errorf("page %s is %d pixels wide, want at most the %d of the window", path, got, width)
				}
			}
			b.window(1280, 800, 1, "light")
		}
		if code := b.visit("nothing"); code != http.StatusNotFound {
			t.Errorf("a page that does not exist: got %d, want 404", code)
		}
		b.shows("There is no such page")
	})
	t.Run("audit", func(t *testing.T) {
		b := anna.with(t)
		b.visit("audit")
		for _, want := range []string{"task reschedule", "task cancel", "task run", "bulk cancel", "recurring pause", "requeue"} {
			b.shows(want)
		}
	})
	t.Run("viewer", func(t *testing.T) { s.viewerLooksOnly(t) })
	t.Run("two", func(t *testing.T) { s.twoAtOnce(t) })
	t.Run("two and one bulk change", func(t *testing.T) { s.twoChangeMany(t) })
	t.Run("a job is stopped", func(t *testing.T) { anna.with(t).stopJob() })
	t.Run("session", func(t *testing.T) { s.sessionEnds(t) })
	t.Run("without JavaScript", func(t *testing.T) { s.withoutScripts(t) })
	t.Run("live", func(t *testing.T) { s.live(t) })
	t.Run("live tasks", func(t *testing.T) { s.liveTasks(t) })
	t.Run("keyboard", func(t *testing.T) { s.keyboard(t) })
	t.Run("sizes", func(t *testing.T) { s.sizes(t) })
	t.Run("contrast", func(t *testing.T) { s.contrast(t) })
}

// with returns the tab for use in a subtest.
func (b *tab) with(t *testing.T) *tab {
	return &tab{t: t, ctx: b.ctx, site: b.site}
}

// selectTasks checks that an action changes only the two selected rows of three.
func (b *tab) selectTasks() {
	s := b.site
	s.add(b.t, "picked", "picked 1", "picked <2>", "picked&3")
	b.visit(address("tasks", "queue", "picked"))
	b.do(chromedp.Click(chromedp.CSS(`input[name=chosen][value="picked+1"]`)), chromedp.Click(chromedp.CSS(`input[name=chosen][value="picked%263"]`)))
	b.becomes("the page shows that 2 rows are selected", `document.getElementById("selected").textContent === " 2"`)
	b.leads(press(`document.querySelector('#selection button[value="cancel"]')`))
	b.shows("Cancel 2 pending tasks?")
	b.click("Cancel 2 tasks")
	b.becomes("the job is done", `document.querySelector(".status.done") !== null`)
	for id, want := range map[string]schedule.Status{
		"picked 1":   schedule.StatusCancelled,
		"picked <2>": schedule.StatusPending,
		"picked&3":   schedule.StatusCancelled,
	} {
		if got := s.task(b.t, id).Status; got != want {
			b.t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
}

func (b *tab) changeTasks() {
	s := b.site
	b.visit("")
	b.click("Tasks")
	b.fill(map[string]string{"prefix": "a"})
	b.click("Filter")
	if at := b.location(); at != "tasks?status=pending&prefix=a" {
		b.t.Errorf(`after the click on Filter, the location is %q, want "tasks?status=pending&prefix=a"`, at)
	}
	b.shows("1 matching")
	b.click("a")
	b.shows(`{"secret":"of a"}`)
	b.click("Reschedule…")
	b.fill(map[string]string{"at": "+90m"})
	b.click("Reschedule")
	b.shows("The task was rescheduled.")
	if due := time.Until(s.task(b.t, "a").DeliverAt); due < 80*time.Minute || due > 91*time.Minute {
		b.t.Errorf("the rescheduled task is due in %v, want 80m to 91m", due)
	}
	b.click("Cancel…")
	b.click("Cancel")
	b.shows("The task was cancelled.")
	b.visit(address("task", "id", "b"))
	b.click("Run now")
	b.click("Run now")
	b.shows("The task is now due")
	b.visit(address("task", "id", "c"))
	b.click("Copy…")
	b.fill(map[string]string{"id": "copy of c", "at": "tomorrow 08:00 Europe/Berlin"})
	b.click("Schedule task")
	b.shows("The task was scheduled.")
	if x := s.task(b.t, "copy of c"); string(x.Body) != `{"secret":"of c"}` || x.Queue != "mail" || len(x.Tags) != 1 {
		b.t.Errorf(`the copy is %+v, want Body = "{"secret":"of c"}", Queue = "mail" and len(x.Tags) = 1`, x)
	}
	b.visit(address("task-new", "id", "c", "queue", "mail", "at", "+1h"))
	b.click("Schedule task")
	b.shows("A different task with this ID exists")

	if _, err := s.db.ExecContext(b.t.Context(),
		"UPDATE rabbitdelay_tasks SET status = 'failed', last_error = 'no', finished_at = updated_at WHERE id = 'd'"); err != nil {
		b.t.Fatal(err)
	}
	b.visit(address("task", "id", "d"))
	b.click("Revive…")
	b.fill(map[string]string{"at": "+7200h"})
	b.click("Revive")
	b.shows("The task was revived")

	b.reviveAsTyped()
	ids := make([]string, 700)
	for i := range ids {
		ids[i] = fmt.Sprintf("bulk-%d", i)
	}
	s.add(b.t, "orders", ids...)
	b.visit("tasks?queue=orders")
	b.shows("700 matching")
	b.click("Cancel…")
	b.shows("Cancel 700 pending tasks?")
	b.shows("orders")
	b.click("Cancel 700 tasks")
	b.becomes("the job is done", `document.querySelector("main .status")?.textContent === "done"`)
	b.shows("700 tasks changed")
	if x := s.task(b.t, "bulk-699"); x.Status != schedule.StatusCancelled {
		b.t.Errorf("task bulk-699 is %s, want %s", x.Status, schedule.StatusCancelled)
	}
	b.visit("tasks?queue=orders&status=cancelled")
	b.click("Next")
	b.click("Next")
	if n := eval[int](b, `document.querySelectorAll("tr[data-row]").length`); n != 50 {
		b.t.Errorf("the second page of tasks has %d rows, want 50", n)
	}
}

// reviveAsTyped checks that a change of the form's fields after the count leads to another count, and not to the
// change.
func (b *tab) reviveAsTyped() {
	b.t.Helper()
	s := b.site
	s.add(b.t, "late", "late-1", "late-2", "late-3")
	if _, err := s.db.ExecContext(b.t.Context(), "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = updated_at WHERE queue = 'late'"); err != nil {
		b.t.Fatal(err)
	}
	b.visit("tasks?queue=late&status=failed")
	b.click("Revive…")
	b.shows("Revive 3 failed tasks?")
	b.fill(map[string]string{"at": "+720h", "spread": "10h"})
	b.click("Revive 3 tasks")
	b.shows("Nothing has been changed yet")
	b.shows("spread over 10h")
	if x := s.task(b.t, "late-1"); x.Status != schedule.StatusFailed {
		b.t.Fatalf("before the second count, the task is %s, want failed", x.Status)
	}
	b.click("Revive 3 tasks")
	b.becomes("the job is done", `document.querySelector("main .status")?.textContent === "done"`)
	for _, id := range []string{"late-1", "late-2", "late-3"} {
		if due := time.Until(s.task(b.t, id).DeliverAt); due < 719*time.Hour {
			b.t.Errorf("task %s is due in %v, want at least 719h", id, due)
		}
	}
}

func (b *tab) changeRecurring() {
	b.visit("recurring")
	b.click("New recurring task")
	b.fill(map[string]string{"name": "nightly", "cron": "30 2 * * *", "time-zone": "Europe/Berlin", "queue": "mail", "body": "{}"})
	b.click("Save")
	b.shows("The recurring task was saved.")
	if n := eval[int](b, `document.querySelectorAll("tr[data-row]").length`); n < 10 {
		b.t.Errorf("the page shows %d due times, want at least 10", n)
	}
	for _, x := range [][3]string{{"Pause…", "Pause", "was paused"}, {"Resume…", "Resume", "was resumed"}} {
		b.click(x[0])
		b.click(x[1])
		b.shows(x[2])
	}
	b.click("Run…")
	b.click("Run now")
	b.shows("nightly@")
	b.visit("recurring-task?name=nightly")
	b.click("Edit…")
	b.fill(map[string]string{"cron": "45 2 * *"})
	b.click("Save")
	b.shows("Invalid recurring task")
	b.fill(map[string]string{"cron": "45 2 * * *"})
	b.click("Save")
	b.shows("45 2 * * *")
	b.visit("recurring-edit")
	b.fill(map[string]string{"name": "short", "every": "1h", "queue": "mail"})
	b.click("Save")
	b.click("Delete…")
	b.click("Delete")
	b.shows("was deleted")
}

func (b *tab) requeue() {
	s := b.site
	b.visit("dead-queue?queue=mail.dead")
	b.shows("no such address")
	b.click("Requeue…")
	b.click("Dry run")
	b.shows("2 of 2 messages would be requeued")
	b.fill(map[string]string{"limit": "1"})
	b.click("Requeue 2 messages")
	b.shows("Nothing has been changed yet")
	b.fill(map[string]string{"limit": "2", "ids": "none"})
	b.do(chromedp.Focus(chromedp.CSS("#limit")))
	b.leads(chromedp.KeyEvent("\r")) // Enter must start only a dry run
	b.shows("No message would be requeued")
	b.fill(map[string]string{"ids": "dead-1"})
	b.click("Dry run")
	b.shows("1 of 2 messages would be requeued")
	if n := s.lying(b.t, "mail.dead"); n != 2 {
		b.t.Errorf("after the dry run, %d messages are in the queue, want 2", n)
	}
	b.click("Requeue 1 message")
	b.becomes("the job is done", `document.querySelector("main .status")?.textContent === "done"`)
	if n := s.lying(b.t, "mail.dead"); n != 1 {
		b.t.Errorf("%d dead letters are left, want 1", n)
	}
}

func (b *tab) retire() {
	s := b.site
	s.declare(b.t, "bucket: {radices: [3, 3]}")
	b.becomes("the page shows the earlier layout", `
(location.pathname.endsWith("layouts") || location.assign("layouts"),
document.body.textContent.includes("earlier, drained")) ||
(setTimeout(() => location.reload(), 500), false)`)
	b.shows("in use")
	b.click("Retire earlier layouts…")
	b.shows("Retire earlier layouts?")
	b.shows("delay.bucket.r3x3")
	b.click("Delete these objects")
	b.becomes("the job is done", `document.querySelector("main .status")?.textContent === "done"`)
	b.visit("retire")
	b.shows("the broker has no objects of the earlier layouts")
}

// viewerLooksOnly checks that the pages offer a viewer no actions, and that a viewer's requests for them are refused.
func (s *site) viewerLooksOnly(t *testing.T) {
	s.add(t, "mail", "not a viewer's")
	b := s.open(t, "vera")
	for _, path := range append([]string{address("task", "id", "not a viewer's")}, pages...) {
		if code := b.visit(path); code != http.StatusOK {
			t.Errorf("%s: got %d, want 200", path, code)
		}
		if n := eval[int](b, `document.querySelectorAll("main form[method=post], main .button:not([rel=next])").length`); n > 0 {
			t.Errorf("page %s offers a viewer %d actions, want 0", path, n)
		}
		if strings.Contains(b.text("main"), "secret") {
			t.Errorf("page %s shows a viewer the body of a task, want it hidden", path)
		}
	}
	// These requests have the token of the viewer's own session.
	for _, path := range []string{
		"task-cancel", "task-reschedule", "task-run", "task-revive", "task-new", "bulk", "job-stop", "job-continue",
		"recurring-edit", "recurring-pause", "recurring-resume", "recurring-run", "recurring-delete", "requeue",
		"discard", "retire",
	} {
		for _, method := range []string{"GET", "POST"} {
			code := eval[int](b, fmt.Sprintf(`(async () => {
				const form = new URLSearchParams({
					token: document.querySelector("[name=token]").value, id: "not a viewer's", name: "nightly",
					queue: "mail", action: "cancel", count: "1", at: "+1h", every: "1m",
				});
				const r = %q === "POST" ? await fetch(%[2]q, {method: "POST", body: form}) : await fetch(%[2]q + "?" + form);
				return r.status;
			})()`, method, path))
			if code != http.StatusForbidden {
				t.Errorf("%s %s: got %d, want 403", method, path, code)
			}
		}
	}
	if x := s.task(t, "not a viewer's"); x.Version != 1 || x.Status != schedule.StatusPending {
		t.Errorf("after a viewer's requests: got %+v, want Version = 1 and Status = schedule.StatusPending", x)
	}
}

// twoAtOnce checks that a user who runs a task that another user has just cancelled sees the conflict.
func (s *site) twoAtOnce(t *testing.T) {
	s.add(t, "mail", "wanted by two")
	anna, ben := s.open(t, "anna"), s.open(t, "ben")
	anna.visit(address("task-run", "id", "wanted by two"))
	ben.visit(address("task-cancel", "id", "wanted by two"))
	ben.click("Cancel")
	ben.shows("The task was cancelled.")
	if code := anna.click("Run now"); code != http.StatusConflict {
		t.Errorf("running a cancelled task: got %d, want 409", code)
	}
	anna.shows("its status is cancelled, expected pending")
	anna.shows("task cancel by ben")
}

// twoChangeMany checks that two users who confirm the same bulk change each change every task once.
func (s *site) twoChangeMany(t *testing.T) {
	const n = 3000
	s.fill(t, "shared", n)
	anna, ben := s.open(t, "anna"), s.open(t, "ben")
	for _, b := range []*tab{anna, ben} {
		b.visit(address("bulk", "action", "reschedule-by", "by", "1h", "queue", "shared", "status", "pending"))
		b.shows("Reschedule 3,000 pending tasks?")
	}
	anna.click("Reschedule 3,000 tasks")
	ben.click("Reschedule 3,000 tasks")
	done := 0
	for _, b := range []*tab{anna, ben} {
		b.becomes("the job is done", `document.querySelector("main .status")?.textContent === "done"`)
		done += eval[int](b, `Number(document.querySelector(".progress b").textContent.replaceAll(",", ""))`)
	}
	// Both jobs reschedule every task by an hour, as each user has requested.
	var moved, versions int
	err := s.db.QueryRowContext(t.Context(),
		"SELECT COUNT(*), SUM(version - 1) FROM rabbitdelay_tasks WHERE queue = 'shared'").Scan(&moved, &versions)
	if err != nil {
		t.Fatal(err)
	}
	if moved != n || versions != done || done != 2*n {
		t.Errorf("%d tasks were changed %d times, and the jobs report %d changes, want %d tasks and %d changes", moved, versions, done, n, 2*n)
	}
	for _, b := range []*tab{anna, ben} {
		b.visit(address("bulk", "action", "cancel", "queue", "shared", "status", "pending"))
	}
	anna.click("Cancel 3,000 tasks")
	ben.click("Cancel 3,000 tasks")
	done = 0
	for _, b := range []*tab{anna, ben} {
		b.becomes("the job is done", `document.querySelector("main .status")?.textContent === "done"`)
		done += eval[int](b, `Number(document.querySelector(".progress b").textContent.replaceAll(",", ""))`)
	}
	if done != n {
		t.Errorf("%d tasks were cancelled, want %d", done, n)
	}
}

// stopJob stops a job, checks that it stops, and continues it.
func (b *tab) stopJob() {
	const n = 60_000
	s := b.site
	s.fill(b.t, "long", n)
	b.visit(address("bulk", "action", "reschedule-by", "by", "1h", "queue", "long", "status", "pending"))
	b.click("Reschedule 60,000 tasks")
	b.becomes("some tasks are rescheduled", `Number(document.querySelector(".progress b")?.textContent.replaceAll(",", "")) > 0`)
	b.click("Stop…")
	b.click("Stop")
	b.shows("stopped")
	moved := func() (n int) {
		b.t.Helper()
		if err := s.db.QueryRowContext(b.t.Context(), "SELECT COALESCE(SUM(version - 1), 0) FROM rabbitdelay_tasks WHERE queue = 'long'").Scan(&n); err != nil {
			b.t.Fatal(err)
		}
		return n
	}
	if at := moved(); at == 0 || at == n {
		b.t.Fatalf("%d of %d tasks were rescheduled when the job was stopped, want some, but not all", at, n)
	}
	b.click("Continue…")
	b.click("Continue")
	b.becomes("the job is done", `document.querySelector("main .status")?.textContent === "done"`)
	b.shows("60,000 tasks changed")
	if at := moved(); at != n {
		b.t.Errorf("%d tasks were rescheduled, want %d", at, n)
	}
}

// sessionEnds checks that the values in a form are kept when the session has expired and the user logs in again.
func (s *site) sessionEnds(t *testing.T) {
	s.add(t, "mail", "in between")
	b := s.open(t, "anna")
	b.visit(address("task-reschedule", "id", "in between"))
	b.fill(map[string]string{"at": "+77m"})
	b.forget()
	b.click("Reschedule")
	b.shows("Your session has expired. Nothing was changed.")
	b.login("anna")
	if v := b.value("at"); v != "+77m" {
		t.Errorf(`after the login, the field "at" is %q, want "+77m"`, v)
	}
	b.click("Reschedule")
	b.shows("The task was rescheduled.")
	b.forget()
	if b.visit("tasks?queue=mail"); !strings.Contains(b.text("main"), "Log in") {
		t.Error("a page without a session does not contain \"Log in\"")
	}
	b.login("anna")
	if at := b.location(); at != "tasks?queue=mail" {
		t.Errorf(`after the login, the location is %q, want "tasks?queue=mail"`, at)
	}
}

func (s *site) withoutScripts(t *testing.T) {
	s.add(t, "mail", "by hand")
	b := s.open(t, "")
	b.without()
	b.visit("tasks?prefix=by")
	b.login("anna")
	b.click("by hand")
	b.click("Reschedule…")
	b.fill(map[string]string{"at": "2027-01-31T08:00:00Z"})
	b.click("Reschedule")
	b.shows("2027-01-31 08:00:00 UTC")
	b.submit("#theme-form")
	if got := b.text("#theme"); got != "Light" {
		t.Errorf(`the theme button shows %q, want "Light"`, got)
	}
	for _, path := range pages {
		if code := b.visit(path); code != http.StatusOK {
			t.Errorf("%s: got %d, want 200", path, code)
		}
	}
}

// live checks that changes appear without reloading, unless updates are paused.
func (s *site) live(t *testing.T) {
	b := s.open(t, "anna")
	b.visit("")
	b.becomes("the page is live", `document.getElementById("live-state")?.textContent === "live"`)
	counted := `[...document.querySelectorAll(".horizon dt")].find(e => e.textContent === "Later").nextElementSibling.textContent`
	before := eval[string](b, counted)
	s.add(t, "mail", "live 1", "live 2", "live 3")
	b.becomes("the count changes", counted+` !== "`+before+`"`)
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	if got := eval[string](b, `document.getElementById("live-state").textContent`); got != "paused" {
		t.Errorf(`after a click on the pause button, the state is %q, want "paused"`, got)
	}
}

// liveTasks checks that a list updates itself without losing the user's input, focus or selection.
func (s *site) liveTasks(t *testing.T) {
	s.add(t, "watched", "watched 1", "watched 2", "watched 3")
	b := s.open(t, "anna")
	b.visit("tasks?queue=watched")
	b.becomes("the page is live", `document.getElementById("live-state")?.textContent === "live"`)
	b.do(chromedp.SetValue(chromedp.CSS("#f-prefix"), "half writ"))
	eval[bool](b, `(() => {
		const row = document.querySelectorAll("tr[data-row]")[1];
		row.mark = "the same";
		row.querySelector("a").focus();
		getSelection().selectAllChildren(row.querySelector(".when time"));
		return true;
	})()`)
	if err := s.store.Cancel(t.Context(), s.db, "watched 1"); err != nil {
		t.Fatal(err)
	}
	s.add(t, "watched", "watched 4")
	b.becomes("the list changes", `document.body.textContent.includes("4 matching") && document.querySelector("tr[data-row] .status").textContent === "cancelled"`)
	for what, script := range map[string]string{
		"the row":       `document.activeElement.closest("tr").mark === "the same" && document.activeElement.textContent === "watched 2"`,
		"the selection": `getSelection().toString().length > 15`,
		"the field":     `document.getElementById("f-prefix").value === "half writ"`,
	} {
		if !eval[bool](b, script) {
			t.Errorf("after the update, the page has lost %s, want it kept", what)
		}
	}
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	s.add(t, "watched", "watched 5")
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	b.becomes("updates have resumed", `document.body.textContent.includes("5 matching")`)
}

func (s *site) keyboard(t *testing.T) {
	b := s.open(t, "anna")
	b.visit("tasks?queue=mail")
	for _, key := range []string{"j", "j", "k"} {
		b.do(chromedp.KeyEvent(key))
	}
	if at := eval[int](b, `[...document.querySelectorAll("tr[data-row] td[data-label=Task] a")].indexOf(document.activeElement)`); at != 0 {
		t.Errorf("row %d has the focus, want row 0", at)
	}
	b.do(chromedp.KeyEvent("x"))
	if n := eval[int](b, `document.querySelectorAll("td.pick input:checked").length`); n != 1 {
		t.Errorf("%d rows are selected, want 1", n)
	}
	if text := eval[string](b, `document.getElementById("selected").textContent`); text != " 1" {
		t.Errorf("the page shows %q selected rows, want \" 1\"", text)
	}
	b.do(chromedp.KeyEvent("/"))
	if name := eval[string](b, "document.activeElement.name"); name != "queue" {
		t.Errorf(`the focus is on %q, want "queue"`, name)
	}
	b.do(chromedp.KeyEvent("x")) // a letter in a field is not a shortcut
	if v := b.value("queue"); !strings.Contains(v, "x") {
		t.Errorf(`the field is %q, want it to contain "x"`, v)
	}
	b.visit("tasks")
	b.do(chromedp.KeyEvent("?"))
	if !eval[bool](b, `document.getElementById("keys").open`) {
		t.Error("the list of keys is closed after pressing ?, want it open")
	}
	b.do(chromedp.Click(chromedp.CSS("#keys-on")))
	b.visit("tasks")
	b.do(chromedp.KeyEvent("/"), chromedp.KeyEvent("?"))
	if eval[bool](b, `document.getElementById("keys").open || document.activeElement.name === "queue"`) {
		t.Error("a single-letter key had an effect while these keys were turned off, want none")
	}
	b.do(chromedp.Click(chromedp.CSS("#show-keys")))
	if !eval[bool](b, `document.getElementById("keys").open && !document.getElementById("keys-on").checked`) {
		t.Error("the list of keys is closed or shows that the keys are on, want it open and showing that they are off")
	}
}

// sizes checks large and small screens, a tablet and a phone. The header must have one line, or two with the links to
// the pages in the second, no word may be broken, and buttons must be large enough.
func (s *site) sizes(t *testing.T) {
	b := s.open(t, "anna")
	for _, path := range pages {
		for width, head := range map[int64]int64{1440: 56, 1024: 56, 768: 84, 390: 84} {
			b.window(width, 900, 1, "light")
			b.visit(path)
			if got := eval[int64](b, `document.querySelector(".top").offsetHeight`); got > head {
				t.Errorf("page %s: the header is %d pixels high in a window %d pixels wide, want at most %d", path, got, width, head)
			}
			if bad := eval[string](b, brokenScript); bad != "" {
				t.Errorf(`page %s, width %d: got the broken words %s, want none`, path, width, bad)
			}
			if bad := eval[string](b, smallScript); bad != "" {
				t.Errorf(`page %s, width %d: got the small buttons %s, want none`, path, width, bad)
			}
		}
	}
}

// brokenScript lists words that are broken across lines, except names and texts from other sources.
const brokenScript = `(() => {
	const bad = new Set(), range = document.createRange();
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = walk.nextNode());) {
		if (n.parentElement.closest("bdi, pre, svg, script, .sr, [hidden], dialog:not([open])")) continue;
		for (const word of n.data.matchAll(/[\p{L}\d,.]+/gu)) {
			range.setStart(n, word.index);
			range.setEnd(n, word.index + word[0].length);
			const tops = new Set([...range.getClientRects()].filter((r) => r.width > 1).map((r) => Math.round(r.top / 8)));
			if (tops.size > 1) bad.add(word[0]);
		}
	}
	return [...bad].join(" ");
})()`

// smallScript lists buttons that are less than 24 pixels wide or high.
const smallScript = `[...document.querySelectorAll("button, .button")]
	.filter((b) => b.offsetParent && !b.closest(".sr") && getComputedStyle(b).position !== "absolute")
	.filter((b) => b.offsetHeight < 24 || b.offsetWidth < 24)
	.map((b) => b.textContent).join(" ")`

// contrast checks that text has a contrast of at least 4.5:1 to its background, in dark and light
// mode.
func (s *site) contrast(t *testing.T) {
	b := s.open(t, "anna")
	for _, scheme := range []string{"light", "dark"} {
		for _, path := range pages {
			b.window(1280, 800, 1, scheme)
			b.visit(path)
			if bad := eval[string](b, contrastScript); bad != "" {
				t.Errorf(`page %[2]s, %[1]s mode: got texts with too little contrast: %[3]s, want none`, scheme, path, bad)
			}
		}
	}
}

// contrastScript lists texts with too little contrast according to WCAG 2.
const contrastScript = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const rgb = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
	const luminance = (c) => {
		const [r, g, b] = [...c].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c[3] > 250) return c;
		}
		return rgb("white");
	};
	const bad = new Set();
	for (const e of document.querySelectorAll("body *")) {
		const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
		if (!own || e.closest("svg, .sr, .skip, [hidden], dialog:not([open])") || e.offsetParent === null) continue;
		const a = luminance(rgb(getComputedStyle(e).color)), b = luminance(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) bad.add(e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 20) + " " + ratio.toFixed(2));
	}
	return [...bad].join("; ");
})()`
