package browser

import (
	"database/sql"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
)

// envTasks is the environment variable with the number of tasks for TestManyTasks, as for TestScheduleReads.
const envTasks = "RABBITDELAY_TEST_TASKS"

// TestManyTasks views, filters and pages through 20,000 tasks in PostgreSQL, or the number in RABBITDELAY_TEST_TASKS.
func TestManyTasks(t *testing.T) {
	openBrowser(t)
	n := 20_000
	if text := os.Getenv(envTasks); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 4000 {
			t.Fatalf("%s is %q, want a number of 4000 or more", envTasks, text)
		}
	}
	pg := database.Shared(t, database.PostgreSQL)
	db, err := sql.Open("pgx", pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := newSite(t, broker.Shared(t, broker.Options{Management: true}), layout, pg.URL(), db)
	now := time.Now().UnixMilli()
	const fill = `INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, created_at, updated_at)
		SELECT 'task-' || lpad(i::text, 9, '0'), CASE WHEN i % 10 = 0 THEN 'orders' ELSE 'mail' END,
			$2::bigint + 86400000 + i * 25, '', $2::bigint, $2::bigint FROM generate_series(1, $1) i`
	if _, err := db.ExecContext(t.Context(), fill, n, now); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = db.Exec("TRUNCATE rabbitdelay_tasks") })
	b := s.open(t, "anna")
	look := func(path string, want ...string) {
		began := time.Now()
		if code := b.visit(path); code != http.StatusOK {
			t.Errorf("%s: got %d, want 200", path, code)
		}
		t.Logf("%-60s %v", path, time.Since(began).Round(time.Millisecond))
		for _, w := range want {
			b.shows(w)
		}
	}
	look("", "Pending tasks by due time")
	look("tasks", "10,000+ in total", "task-000000001")
	look("tasks?queue=orders", "task-000000010")
	look("tasks?prefix=task-0000100", "100 matching")
	look("tasks?queue=orders&status=done", "No task matches.")
	look("tasks?from=%2B24h&to=%2B25h", "matching")
	b.visit("tasks?queue=mail")
	for range 3 {
		b.click("Next")
	}
	if rows := eval[int](b, `document.querySelectorAll("tr[data-row]").length`); rows != 50 {
		t.Errorf("the page shows %d rows, want 50", rows)
	}
	// Click on a bar in the histogram of the year, and then on bars of shorter periods, until the page lists tasks.
	b.visit("")
	for range 8 {
		href := eval[string](b, `[...document.querySelectorAll(".bars a")].filter(a => !a.hasAttribute("aria-hidden")).map(a => a.getAttribute("href"))[0] ?? ""`)
		if href == "" {
			t.Fatalf("the histogram at %s has no bar with a link, want at least one", b.location())
		}
		look(href)
		if len(b.location()) > 5 && b.location()[:5] == "tasks" {
			return
		}
	}
	t.Errorf("after 8 clicks on bars, the location is %s, want a list of tasks", b.location())
}
