package console

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// Old audit entries and jobs are deleted, except running jobs.
func TestAuditIsKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		check(t, w.c.Close(t.Context()))
		at := func(ago time.Duration, id uuid.UUID) (string, int64) {
			ms := time.Now().Add(-ago).UnixMilli()
			for i := range 6 {
				id[i] = byte(ms >> (8 * (5 - i)))
			}
			return id.String(), ms
		}
		add := func(ago time.Duration, action, state string, alive time.Duration) {
			id, ms := at(ago, uuid.Must(uuid.NewV7()))
			_, err := w.db.ExecContext(t.Context(),
				"INSERT INTO rabbitdelay_audit (id, at, who, action, detail, error, result, request, place, state, alive_at) "+
					"VALUES (?, ?, 'anna', ?, '', '', '', '', '', ?, ?)",
				id, ms, action, state, time.Now().Add(-alive).UnixMilli())
			check(t, err)
			if state != "" {
				_, err = w.db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_audit_tasks (audit_id, task_id) VALUES (?, 'x'), (?, 'y')", id, id)
				check(t, err)
			}
		}
		const hour = time.Hour
		for i := range 2500 { // more than a batch
			add(3*hour+time.Duration(i), "old", "", 3*hour)
		}
		add(3*hour, "old job", "done", 3*hour)
		add(3*hour, "dead job", "running", 3*hour)
		add(3*hour, "running job", "running", 0)
		add(2*hour-time.Minute, "young", "", 2*hour)
		w.cfg.KeepAudit = 2 * hour
		other := newWorldOn(t, w)
		<-time.After(10 * time.Second) // enough for the first purge, which may wait for the database file's lock
		synctest.Wait()
		var left string
		check(t, w.db.QueryRowContext(t.Context(), "SELECT group_concat(action) FROM (SELECT action FROM rabbitdelay_audit ORDER BY action LIMIT 10)").Scan(&left))
		if left != "running job,young" {
			t.Errorf(`the remaining entries: got %s, want "running job,young"`, left)
		}
		var tasks int
		check(t, w.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_audit_tasks").Scan(&tasks))
		if tasks != 2 {
			t.Errorf("the remaining rows in rabbitdelay_audit_tasks: got %d, want 2", tasks)
		}
		check(t, other.c.Close(t.Context()))
		w.cfg.KeepAudit = time.Minute
		if _, err := New(w.cfg); err == nil || !strings.Contains(err.Error(), "expected 0 for the default, or 1h or more") {
			t.Errorf(`KeepAudit of a minute: got error %v, want it to contain "expected 0 for the default, or 1h or more"`, err)
		}
		_, err := w.db.ExecContext(t.Context(), "DROP TABLE rabbitdelay_audit")
		check(t, err)
		w.cfg.KeepAudit = 0
		other = newWorldOn(t, w)
		<-time.After(10 * time.Second) // enough for the next purge
		synctest.Wait()
		o, err := other.c.core.Overview(t.Context(), service.Identity{Role: service.RoleOperator})
		check(t, err)
		if !strings.Contains(o.Problem, "old audit entries cannot be deleted") {
			t.Errorf(`the overview's problem is %q, want it to contain "old audit entries cannot be deleted"`, o.Problem)
		}
	})
}

// If a console cannot be created, no goroutine is left running, as goleak checks.
func TestNoConsoleWithoutItsUsers(t *testing.T) {
	if _, err := New(Config{Users: t.TempDir() + "/users.yaml"}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got error %v, want it to contain \"no such file\"", err)
	}
}
