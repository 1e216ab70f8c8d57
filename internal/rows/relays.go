package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Relay is a row in rabbitdelay_relays.
type Relay struct {
	Name, Version string
	Started, Seen time.Time
}

// Relays returns the relays, the most recently seen one first.
func (c Conn) Relays(ctx context.Context) (list []Relay, err error) {
	err = c.each(ctx, "SELECT name, version, started_at, seen_at FROM rabbitdelay_relays ORDER BY seen_at DESC, name", nil, func(scan scanner) error {
		var r Relay
		var started, seen int64
		err := scan(&r.Name, &r.Version, &started, &seen)
		r.Started, r.Seen = time.UnixMilli(started).UTC(), time.UnixMilli(seen).UTC()
		list = append(list, r)
		return err
	})
	return list, err
}

// CanBeat returns an error if no relay can record in this database that it is running, for example because the database
// is read-only. It changes nothing. It does not check SQLite, where it would have to wait for other writers.
func (c Conn) CanBeat(ctx context.Context) error {
	if c.dialect == sqldb.SQLite {
		return nil
	}
	_, err := c.exec(ctx, "UPDATE rabbitdelay_relays SET seen_at = seen_at WHERE id = ''")
	return err
}

// RenewRelay records the heartbeat of a relay. With a virtual clock, r.Seen is in the future, and the heartbeat is
// valid until then. If the relay has no row yet, RenewRelay inserts one, and also deletes the rows of relays that were
// last seen before forget.
func (c Conn) RenewRelay(ctx context.Context, id string, r Relay, forget time.Time) error {
	renewed, err := c.changed(ctx, "UPDATE rabbitdelay_relays SET seen_at = ? WHERE id = ?", r.Seen.UnixMilli(), id)
	if err != nil || renewed {
		return err
	}
	_, err = c.exec(ctx, "INSERT INTO rabbitdelay_relays (id, name, version, started_at, seen_at) VALUES (?, ?, ?, ?, ?)", id, r.Name, r.Version, r.Started.UnixMilli(), r.Seen.UnixMilli())
	if err == nil {
		_, err = c.exec(ctx, "DELETE FROM rabbitdelay_relays WHERE seen_at < ?", forget.UnixMilli())
	}
	return err
}

// RemoveRelay deletes the row of a relay that stops.
func (c Conn) RemoveRelay(ctx context.Context, id string) error {
	_, err := c.exec(ctx, "DELETE FROM rabbitdelay_relays WHERE id = ?", id)
	return err
}

// relayRights lists statements that change nothing but require the permissions of a relay.
var relayRights = []struct{ right, query string }{
	{"SELECT and UPDATE on rabbitdelay_tasks", "UPDATE rabbitdelay_tasks SET status = status WHERE id = ''"},
	{"INSERT on rabbitdelay_tasks", "INSERT INTO rabbitdelay_tasks (id, due_at) SELECT id, due_at FROM rabbitdelay_tasks WHERE id = ''"},
	{"DELETE on rabbitdelay_tasks", "DELETE FROM rabbitdelay_tasks WHERE id = ''"},
	{"SELECT and UPDATE on rabbitdelay_effects", "UPDATE rabbitdelay_effects SET attempts = attempts WHERE task_id = ''"}, // to lock rows
	{"DELETE on rabbitdelay_effects", "DELETE FROM rabbitdelay_effects WHERE task_id = ''"},
	{"SELECT and INSERT on rabbitdelay_task_tags", "INSERT INTO rabbitdelay_task_tags (tag, task_id) SELECT tag, task_id FROM rabbitdelay_task_tags WHERE tag = ''"},
	{"SELECT and UPDATE on rabbitdelay_destinations", "UPDATE rabbitdelay_destinations SET free_at = free_at WHERE queue = '' AND exchange = ''"},
	{"INSERT on rabbitdelay_destinations", "INSERT INTO rabbitdelay_destinations (queue, exchange) SELECT queue, exchange FROM rabbitdelay_destinations WHERE queue = '' AND exchange = ''"},
	{"SELECT and UPDATE on rabbitdelay_schedules", "UPDATE rabbitdelay_schedules SET plan_at = plan_at WHERE name = ''"},
}

// CheckRights returns an error for each permission that a relay needs and that the database user lacks. It ignores
// other database errors, because Run encounters them anyway.
func (db *DB) CheckRights(ctx context.Context) error {
	var errs []error
	for _, r := range relayRights {
		_, err := db.ExecContext(ctx, r.query)
		if err = sqldb.Explain(err); errors.Is(err, sqldb.ErrDenied) {
			errs = append(errs, fmt.Errorf("a relay needs the permission %s: %w", r.right, err))
		}
	}
	return errors.Join(errs...)
}

// Keep is how long finished tasks are kept.
type Keep struct {
	Finished, Failed time.Duration
	Batch            int // rows deleted by one statement
}

// Purge deletes the finished tasks and the records of effects that are older than k allows. It returns the number of
// deleted tasks.
func (db *DB) Purge(ctx context.Context, k Keep, now time.Time) (total int64, err error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	for _, e := range []struct {
		status string
		keep   time.Duration
	}{{Done, k.Finished}, {Cancelled, k.Finished}, {Expired, k.Finished}, {Failed, k.Failed}} {
		n, err := sqldb.Purge(ctx, db.DB, c.dialect, sqldb.Expired{
			Table: "rabbitdelay_tasks", Key: "id",
			Where: "status = '" + e.status + "' AND finished_at < ?", Args: []any{now.Add(-e.keep).UnixMilli()},
			Order: "finished_at",
		}, k.Batch)
		total += n
		if err != nil {
			return total, err
		}
	}
	_, err = sqldb.Purge(ctx, db.DB, c.dialect, sqldb.Expired{
		Table: "rabbitdelay_effects", Key: "task_id, created_at, version, queue",
		Where: "updated_at < ? AND lease_until < ?", Args: []any{now.Add(-k.Finished).UnixMilli(), now.UnixMilli()}, Order: "updated_at",
	}, k.Batch)
	return total, err
}
