package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Record is what a handler has recorded of a message.
type Record struct {
	Scope string // the handler's: the queue, unless it was given another
	ID    string // the message id, or what WithKey made of it
	// Guarded: When or OnlyIf said no, and the effect was left out. Otherwise it
	// was committed.
	Guarded     bool
	ProcessedAt time.Time
}

// Find reads the records of a message in the given scopes, in their order. Records
// are found by scope and id; no index knows the id alone. No record means that the
// effect was not committed in these scopes, or was longer ago than Retention.Keep.
// Errors: ErrNoTable.
func Find(ctx context.Context, db *sql.DB, id string, scopes ...string) ([]Record, error) {
	conn := sqldb.Of(db)
	d, err := sqldb.NewResolver(conn, "").Resolve(ctx, conn)
	if err != nil {
		return nil, err
	}
	var found []Record
	for _, scope := range scopes {
		r := Record{Scope: scope, ID: id}
		var outcome string
		var at int64
		err := conn.QueryRowContext(ctx, d.Bind("SELECT outcome, processed_at FROM rabbitdelay_processed WHERE scope = ? AND message_id = ?"), scope, id).Scan(&outcome, &at)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return nil, fmt.Errorf("reading the record of message %q in %q: %w", id, scope, sqldb.Explain(err))
		}
		r.Guarded, r.ProcessedAt = outcome != "done", time.UnixMilli(at)
		found = append(found, r)
	}
	return found, nil
}
