package idempotency

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

//go:embed migrations
var files embed.FS

var migrations = sqldb.Migrations{Component: "idempotency", Files: files}

// Migrate creates the table rabbitdelay_processed or migrates it to the newest version. It may be called at every
// start, by many processes concurrently. If nothing has to be done, it only reads. The versions are recorded in
// rabbitdelay_schema.
func Migrate(ctx context.Context, db Database) error {
	return migrations.Migrate(ctx, sqldb.Of(db))
}

// Migrations returns the SQL that Migrate runs on an empty database, for use with a separate migration tool. It returns
// an empty string for an unknown dialect.
func Migrations(d Dialect) string { return migrations.Script(sqldb.Dialect(d)) }

// Record is what a handler has recorded about a message.
type Record struct {
	Scope string // the handler's scope: the queue, unless WithScope was used
	ID    string // the message id, or the key that WithKey returned
	// Guarded means that When or OnlyIf declined the effect, so it was skipped. If Guarded is false, the effect was
	// committed.
	Guarded     bool
	ProcessedAt time.Time
}

// Find reads the records of a message in the given scopes and returns them in that order. It needs the scopes because
// there is no index on the id alone. If there is no record, the effect was not committed in these scopes, or it was
// committed longer ago than Retention.Keep. Errors: ErrNoTable.
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
			return nil, fmt.Errorf("reading the record of message %q in scope %q: %w", id, scope, sqldb.Explain(err))
		}
		r.Guarded, r.ProcessedAt = outcome != "done", time.UnixMilli(at)
		found = append(found, r)
	}
	return found, nil
}

// Retention configures how long records are kept. A repeated delivery after that is not recognised, so Keep must be
// longer than a message can wait in the broker after its first delivery, including consumer outages, retries and dead
// letters that are requeued by hand.
type Retention struct {
	Keep  time.Duration // age at which a record may be deleted; default 7 days
	Every time.Duration // pause between two purges; default 10 minutes
	Batch int           // rows deleted by one statement; default 1000
}

// withDefaults returns r with its zero fields set to the defaults.
func (r Retention) withDefaults() Retention {
	return Retention{cmp.Or(r.Keep, 7*24*time.Hour), cmp.Or(r.Every, 10*time.Minute), cmp.Or(r.Batch, 1000)}
}

// validate checks that the fields are in range.
func (r Retention) validate() error {
	switch {
	case units.Duration(r.Keep) != "":
		return fmt.Errorf("retention.keep: %s", units.Duration(r.Keep))
	case units.Duration(r.Every) != "":
		return fmt.Errorf("retention.every: %s", units.Duration(r.Every))
	case r.Keep < 0:
		return fmt.Errorf("retention.keep: %s, expected a positive duration", topology.FormatDuration(r.Keep))
	case r.Every < 0:
		return fmt.Errorf("retention.every: %s, expected a positive duration", topology.FormatDuration(r.Every))
	case r.Batch < 0 || r.Batch > sqldb.MaxPurge:
		return fmt.Errorf("retention.batch: %d, expected 1 to %d", r.Batch, sqldb.MaxPurge)
	}
	return nil
}

// Purge deletes the records that are older than olderThan and returns how many were deleted. Each batch is found by an
// index and deleted by one statement in its own transaction, so that no lock is held for long. Purge refuses a negative
// age, and an age of less than a microsecond, which is probably a number without a unit: it would delete the records of
// messages that may still be delivered again. An age of exactly 0 deletes all records. If another error occurs, the
// returned number counts the records that were deleted before it.
func Purge(ctx context.Context, db Database, olderThan time.Duration, batch int) (int64, error) {
	if reason := units.Duration(olderThan); reason != "" {
		return 0, fmt.Errorf("purging processed messages: age: %s", reason)
	}
	if olderThan < 0 {
		return 0, fmt.Errorf("purging processed messages: the age is %s, expected 0 or more", topology.FormatDuration(olderThan))
	}
	before := time.Now().Add(-olderThan).UnixMilli()
	return sqldb.Purge(ctx, sqldb.Of(db), "", sqldb.Expired{
		Table: "rabbitdelay_processed", Key: "scope, message_id",
		Where: "processed_at < ?", Args: []any{before}, Order: "processed_at",
	}, batch)
}

// RunPurge purges immediately and then every r.Every. It returns nil when ctx ends. It returns an error only if r is
// invalid or db is nil. Errors of a purge are passed to report, which may be nil, and the next purge tries again.
// Several processes may run it concurrently.
func RunPurge(ctx context.Context, db Database, r Retention, report func(deleted int64, err error)) error {
	if err := r.validate(); err != nil {
		return err
	}
	if sqldb.IsNil(db) {
		return fmt.Errorf("purging processed messages: %w", sqldb.ErrNoDatabase)
	}
	r = r.withDefaults()
	ticker := time.NewTicker(r.Every)
	defer ticker.Stop()
	for {
		n, err := Purge(ctx, db, r.Keep, r.Batch)
		if ctx.Err() != nil {
			return nil
		}
		if report != nil {
			report(n, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
