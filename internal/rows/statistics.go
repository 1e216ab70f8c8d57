package rows

import "context"

// Outgrown returns the tables of tasks for which PostgreSQL should collect new statistics, because they have grown to at
// least four times the size that it last saw. It leaves out tables of less than 64 pages, which are read as fast without
// an index, and tables that belong to another role, whose statistics this user cannot refresh. On other databases it
// returns none.
//
// PostgreSQL keeps the plan of a prepared statement until it collects new statistics. If the table was nearly empty when
// the plan was made, the plan reads the whole table, and continues to do so while the table grows. Autovacuum collects
// statistics at most once a minute, and a minute is enough for 100,000 tasks.
func (c Conn) Outgrown(ctx context.Context) ([]string, error) {
	if !c.postgres() {
		return nil, nil
	}
	return c.texts(ctx, "SELECT relname FROM pg_class"+
		" WHERE oid IN (to_regclass('rabbitdelay_tasks'), to_regclass('rabbitdelay_effects'), to_regclass('rabbitdelay_task_tags'))"+
		" AND pg_has_role(relowner, 'USAGE')"+
		" AND pg_relation_size(oid) / CAST(current_setting('block_size') AS bigint) >= GREATEST(64, 4 * relpages)")
}

// Analyze collects new statistics about one of the tables that Outgrown has returned. It does nothing while the table is
// locked, for example because it is being vacuumed.
func (c Conn) Analyze(ctx context.Context, table string) error {
	_, err := c.exec(ctx, "ANALYZE (SKIP_LOCKED) "+table)
	return err
}
