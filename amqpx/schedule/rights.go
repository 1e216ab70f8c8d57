package schedule

import (
	"context"
	"errors"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// relayRights are statements that change nothing, for which a database's user needs
// the rights of a relay.
var relayRights = []struct{ right, query string }{
	{"SELECT and UPDATE on rabbitdelay_tasks", "UPDATE rabbitdelay_tasks SET status = status WHERE id = ''"},
	{"INSERT on rabbitdelay_tasks", "INSERT INTO rabbitdelay_tasks (id, due_at) SELECT id, due_at FROM rabbitdelay_tasks WHERE id = ''"},
	{"DELETE on rabbitdelay_tasks", "DELETE FROM rabbitdelay_tasks WHERE id = ''"},
	{"SELECT and UPDATE on rabbitdelay_effects", "UPDATE rabbitdelay_effects SET attempts = attempts WHERE task_id = ''"}, // to lock rows
	{"DELETE on rabbitdelay_effects", "DELETE FROM rabbitdelay_effects WHERE task_id = ''"},
	{"SELECT and INSERT on rabbitdelay_task_tags", "INSERT INTO rabbitdelay_task_tags (tag, task_id) SELECT tag, task_id FROM rabbitdelay_task_tags WHERE tag = ''"},
	{"SELECT and UPDATE on rabbitdelay_schedules", "UPDATE rabbitdelay_schedules SET plan_at = plan_at WHERE name = ''"},
}

// checkRights tells which rights of a relay the database's user lacks. What else is
// wrong with the database Run finds out by itself.
func (s *Store) checkRights(ctx context.Context) error {
	var errs []error
	for _, r := range relayRights {
		_, err := s.db.ExecContext(ctx, r.query)
		if err = sqldb.Explain(err); errors.Is(err, ErrDenied) {
			errs = append(errs, fmt.Errorf("a relay needs the rights to %s: %w", r.right, err))
		}
	}
	return errors.Join(errs...)
}
