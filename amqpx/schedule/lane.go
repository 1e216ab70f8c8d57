package schedule

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// lane is a destination as claims divide the table: a queue, or an exchange with
// all its routing keys.
type lane struct{ queue, exchange string }

// waiting is a lane that has something to send.
type waiting struct {
	lane
	first int64 // the earliest instant in it, see kind.instant
}

// kind is what a claim looks for.
type kind bool

const (
	toSend   kind = false // never sent in this version
	toResend kind = true  // sent, and still pending
)

// rows is the condition of the kind's index, which has queue and exchange in
// front and instant behind them.
func (k kind) rows() string {
	if k == toResend {
		return "status = 'pending' AND resend_at IS NOT NULL"
	}
	return "status = 'pending' AND resend_at IS NULL"
}

// table is the table with the kind's index. MySQL has one for both kinds, and is
// told to use it, because its statistics know neither kind; SQLite has no
// statistics until somebody runs ANALYZE, and would read all that is pending.
func (k kind) table(d Dialect) string {
	switch {
	case d == MySQL:
		return "rabbitdelay_tasks FORCE INDEX (rabbitdelay_tasks_claim)"
	case d == SQLite && k == toSend:
		return "rabbitdelay_tasks INDEXED BY rabbitdelay_tasks_claim"
	case d == SQLite:
		return "rabbitdelay_tasks INDEXED BY rabbitdelay_tasks_resend"
	}
	return "rabbitdelay_tasks"
}

// instant is what orders the rows of a lane.
func (k kind) instant(d Dialect) string {
	switch {
	case k == toResend:
		return "resend_at"
	case d == PostgreSQL:
		return "due_at + 0" // the index is on this expression; the migration says why
	}
	return "due_at"
}

// look finds the lanes whose first row has an instant up to until. It costs some
// steps down an index for each lane that there is, however many rows wait there.
func (s *Store) look(ctx context.Context, k kind, until int64) ([]waiting, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, d.Bind(lookQuery(d, k)), until)
	if err != nil {
		return nil, fmt.Errorf("looking for tasks: %w", sqldb.Explain(err))
	}
	defer func() { _ = rows.Close() }()
	var list []waiting
	for rows.Next() {
		var w waiting
		if err := rows.Scan(&w.queue, &w.exchange, &w.first); err != nil {
			return nil, fmt.Errorf("looking for tasks: %w", err)
		}
		list = append(list, w)
	}
	return list, rows.Err()
}

// lookQuery goes from each name to the next one by the index. MySQL does that by
// itself for a GROUP BY of the index's first columns, and cannot for what is
// written out.
func lookQuery(d Dialect, k kind) string {
	const columns = "queue, exchange, first FROM (SELECT queue, exchange, "
	if d == MySQL {
		return "SELECT " + columns + "MIN(" + k.instant(d) + ") AS first FROM " + k.table(d) + " WHERE " + k.rows() +
			" GROUP BY status, queue, exchange) AS lanes WHERE first <= ?"
	}
	next := func(name, after, within string) string {
		return fmt.Sprintf("(SELECT %s FROM %s WHERE %s%s AND %s > %s ORDER BY %s LIMIT 1)",
			name, k.table(d), k.rows(), within, name, after, name)
	}
	names := func(table, name, within string) string {
		return fmt.Sprintf("%s (name) AS (SELECT %s UNION ALL SELECT %s FROM %s WHERE name IS NOT NULL)",
			table, next(name, "''", within), next(name, table+".name", within), table)
	}
	first := fmt.Sprintf("(SELECT %s FROM %s WHERE %s AND rabbitdelay_tasks.queue = lanes.queue AND rabbitdelay_tasks.exchange = lanes.exchange ORDER BY %s LIMIT 1) AS first",
		k.instant(d), k.table(d), k.rows(), k.instant(d))
	return "WITH RECURSIVE " + names("queues", "queue", "") + ", " + names("exchanges", "exchange", " AND queue = ''") +
		" SELECT " + columns + first + " FROM (SELECT name AS queue, '' AS exchange FROM queues WHERE name IS NOT NULL" +
		" UNION ALL SELECT '', name FROM exchanges WHERE name IS NOT NULL) AS lanes) AS firsts WHERE first <= ?"
}
