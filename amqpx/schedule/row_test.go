package schedule

import (
	"database/sql"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Invalid rows from another program fail with a reason, do not block valid rows, and are listed.
func TestForeignRowsThatCannotBeRead(t *testing.T) {
	var r recorder
	bubble(t, &r, Config{}, func(t *testing.T, s *Store, db *sql.DB) {
		_, err := db.ExecContext(t.Context(), "PRAGMA ignore_check_constraints = 1")
		check(t, err)
		insert := func(id any, column string, value any) bool {
			t.Helper()
			query := fmt.Sprintf("INSERT INTO rabbitdelay_tasks (id, queue, due_at, %s) VALUES (?, 'q', 1, ?)", column)
			if column == "due_at" {
				query = "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', ?)"
			}
			_, err := db.ExecContext(t.Context(), query, id, value)
			return err == nil // otherwise the schema refuses the row, which is also correct
		}
		bad := 0
		for i, c := range []struct {
			id     any
			column string
			value  any
		}{
			{"real", "due_at", 1.5}, {"attempts", "attempts", "many"}, {"version", "version", 1.5},
			{"text", "content_type", "\xff"}, {"key", "routing_key", "\xff"}, {"", "type", "x"}, {"space ", "type", "x"}, {[]byte("blob"), "attempts", "x"},
			{"invalid \xff", "type", "x"}, {"headers", "headers", "[]"}, {"created", "created_at", "today"},
			{"soon", "due_at", "soon"}, {"blob", "due_at", []byte("soon")}, {"far away", "due_at", int64(rows.MaxDue + 1)}, {[]byte("blob id"), "due_at", "soon"},
		} {
			if insert(c.id, c.column, c.value) {
				bad++
			} else {
				t.Logf("row %d is refused by the schema", i)
			}
		}
		for i := range 5 {
			insert(fmt.Sprint("good ", i), "type", "x")
		}
		_, err = db.ExecContext(t.Context(), "PRAGMA ignore_check_constraints = 0")
		check(t, err)
		s.Wake()
		<-time.After(time.Minute)
		synctest.Wait()
		if got := r.receipts(); len(got) != 5 {
			t.Errorf("%d messages were sent, want 5: %v", len(got), got)
		}
		failed := 0
		for task, err := range s.List(t.Context(), NoTx, Filter{Status: StatusFailed}) {
			check(t, err)
			failed++
			if task.LastError == "" {
				t.Errorf("task %q failed without a LastError, want a reason", task.ID)
			}
		}
		if failed != bad {
			t.Errorf("%d tasks are listed as failed, want %d", failed, bad)
		}
		if got, err := s.Get(t.Context(), NoTx, "real"); err != nil || got.Status != StatusFailed {
			t.Errorf("Get: got %+v, error %v, want Status = %v and no error", got, err, StatusFailed)
		}
	})
}
