package browser

import (
	"database/sql"
	"net/http"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
)

// TestDown stops the broker, and later the database. Pages report this, still show what is available, and recover
// without a reload.
func TestDown(t *testing.T) {
	openBrowser(t)
	b, err := broker.Start(t.Context(), broker.Options{Management: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if b.Source() == broker.Environment {
		t.Skip("skipped: the test must not stop the broker at AMQP_URL")
	}
	pg, err := database.Start(t.Context(), database.PostgreSQL, database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Close() })
	db, err := sql.Open("pgx", pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := newSite(t, b, layout, pg.URL(), db)
	s.add(t, "mail", "a", "b")
	anna := s.open(t, "anna")

	verdict := func(class string) string {
		return `document.querySelector(".verdict")?.classList.contains("` + class + `")`
	}
	anna.visit("")
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	anna.becomes("the page shows without a reload that the broker is down", verdict("bad")+` && document.body.textContent.includes("could not be read")`)
	if code := anna.visit("tasks"); code != http.StatusOK {
		t.Errorf("the tasks page without a broker: got %d, want 200", code)
	}
	anna.visit(address("task", "id", "a"))
	anna.click("Cancel…")
	anna.click("Cancel")
	anna.shows("The task was cancelled.")
	if code := anna.visit("dead-queue?queue=mail.dead"); code < 500 {
		t.Errorf("the page of a dead-letter queue without a broker: got %d, want 500 or higher", code)
	}
	anna.shows("The broker does not answer")
	anna.visit("trace?id=b")
	anna.shows("Not checked: broker")
	anna.shows("It is due at")
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	anna.visit("")
	anna.becomes("the page shows the broker's data again", `document.querySelector(".clock") !== null`)

	anna.visit(address("task-reschedule", "id", "b"))
	if err := pg.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	anna.fill(map[string]string{"at": "+1h"})
	if code := anna.click("Reschedule"); code != http.StatusServiceUnavailable {
		t.Errorf("a change without a database: got %d, want 503", code)
	}
	for _, path := range []string{"tasks", "task?id=b", "recurring"} {
		if code := anna.visit(path); code != http.StatusServiceUnavailable {
			t.Errorf("page %s without a database: got %d, want 503", path, code)
		}
		anna.shows("The database does not answer")
		if n := eval[int](anna, `document.querySelectorAll("nav a").length`); n < 6 {
			t.Errorf("page %s without a database: got %d links to other pages, want at least 6", path, n)
		}
	}
	if code := anna.visit(""); code != http.StatusOK {
		t.Errorf("the first page without a database: got %d, want 200", code)
	}
	anna.becomes("the page shows that the database is down", verdict("bad")+` && document.body.textContent.includes("The database does not answer")`)
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	anna.visit("tasks")
	anna.shows("b")
}
