package idempotency

import (
	"context"
	"embed"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

//go:embed migrations
var files embed.FS

var migrations = sqldb.Migrations{Component: "idempotency", Files: files}

// Migrate creates the table rabbitdelay_processed, or brings it to the newest
// version. It may be called at every start and by many processes at once; it
// only reads when there is nothing to do. The versions are recorded in
// rabbitdelay_schema.
func Migrate(ctx context.Context, db Database) error {
	return migrations.Migrate(ctx, sqldb.Of(db))
}

// Migrations is the SQL that Migrate runs on an empty database, for a team's own
// migration tool; empty for an unknown dialect.
func Migrations(d Dialect) string { return migrations.Script(sqldb.Dialect(d)) }
