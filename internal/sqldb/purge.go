package sqldb

import (
	"context"
	"fmt"
)

// MaxPurge is the maximum batch size of Purge.
const MaxPurge = 100_000

// Expired describes the rows that a purge deletes.
type Expired struct {
	Table string
	Key   string // the columns of the primary key
	Where string // contains placeholders for Args
	Args  []any
	Order string // the columns of the index that Where uses
	// Unlocked means that the rows are not locked before they are deleted, because no transaction changes such rows.
	// PostgreSQL requires an additional permission for locking a row.
	Unlocked bool
}

// Purge deletes rows in batches, each in its own transaction, until a batch deletes fewer rows than its size. It
// returns the number of deleted rows, even if it fails. On PostgreSQL, it leaves locked rows for the next purge, unless
// Unlocked is set.
func Purge(ctx context.Context, db DB, d Dialect, e Expired, batch int) (int64, error) {
	if batch < 1 || batch > MaxPurge {
		return 0, fmt.Errorf("purging %s: batch is %d, expected 1 to %d", e.Table, batch, MaxPurge)
	}
	d, err := NewResolver(db, d).Resolve(ctx, db)
	if err != nil {
		return 0, fmt.Errorf("purging %s: %w", e.Table, err)
	}
	rows := fmt.Sprintf("%s ORDER BY %s LIMIT %d", e.Where, e.Order, batch)
	query := fmt.Sprintf("DELETE FROM %s WHERE (%s) IN (SELECT %s FROM %s WHERE %s)", e.Table, e.Key, e.Key, e.Table, rows)
	switch d {
	case PostgreSQL:
		if !e.Unlocked {
			query = query[:len(query)-1] + " FOR UPDATE SKIP LOCKED)"
		}
	case MySQL:
		query = fmt.Sprintf("DELETE FROM %s WHERE %s", e.Table, rows)
	}
	var total int64
	for {
		var n int64
		err := Transact(ctx, db, nil, func(tx Tx) error {
			res, err := tx.ExecContext(ctx, d.Bind(query), e.Args...)
			if err == nil {
				n, err = res.RowsAffected()
			}
			return err
		})
		if err != nil {
			return total, fmt.Errorf("purging %s: %w", e.Table, Explain(err))
		}
		total += n
		if n < int64(batch) {
			return total, nil
		}
	}
}
