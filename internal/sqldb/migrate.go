package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Migrations describes the schema versions of one component's tables. Files contains
// migrations/<dialect>/<version>_<name>.sql, in which each statement ends with a semicolon at the end of a line. Each
// statement must be safe to repeat, because MySQL commits every statement separately.
type Migrations struct {
	Component string
	Files     fs.FS
}

const schemaTable = `CREATE TABLE IF NOT EXISTS rabbitdelay_schema (
  component  VARCHAR(64) NOT NULL,
  version    INTEGER     NOT NULL,
  applied_at BIGINT      NOT NULL, -- milliseconds since the Unix epoch
  PRIMARY KEY (component, version)
)`

type migration struct {
	version int
	name    string
	text    string
}

func (m Migrations) load(d Dialect) ([]migration, error) {
	dir := path.Join("migrations", string(d))
	entries, err := fs.ReadDir(m.Files, dir)
	if err != nil {
		return nil, fmt.Errorf("%s has no migrations for %q: %w", m.Component, d, err)
	}
	var list []migration
	for _, e := range entries {
		number, _, ok := strings.Cut(e.Name(), "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil {
			return nil, fmt.Errorf("migration %s: the name must be <version>_<name>.sql", e.Name())
		}
		text, err := fs.ReadFile(m.Files, path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, migration{version, e.Name(), string(text)})
	}
	slices.SortFunc(list, func(a, b migration) int { return a.version - b.version })
	return list, nil
}

// Script returns the SQL that Migrate would run on an empty database, including the statements that record the
// versions, for use with a separate migration tool. It returns an empty string for an unknown dialect.
func (m Migrations) Script(d Dialect) string {
	list, err := m.load(d)
	if err != nil {
		return ""
	}
	now := map[Dialect]string{
		PostgreSQL: "CAST(extract(epoch FROM now()) * 1000 AS bigint)",
		MySQL:      "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
		SQLite:     "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
	}[d]
	var b strings.Builder
	b.WriteString(schemaTable + ";\n\n")
	for _, mig := range list {
		fmt.Fprintf(&b, "%s\nINSERT INTO rabbitdelay_schema (component, version, applied_at) SELECT '%s', %d, %s\n  WHERE NOT EXISTS (SELECT 1 FROM rabbitdelay_schema WHERE component = '%s' AND version = %d);\n",
			strings.TrimSpace(mig.text)+"\n", m.Component, mig.version, now, m.Component, mig.version)
	}
	return b.String()
}

// Migrate migrates the component's tables to the newest version. Concurrent processes wait for each other. If nothing
// has to be done, Migrate only reads.
func (m Migrations) Migrate(ctx context.Context, db DB) error {
	conn, err := db.Session(ctx)
	if err != nil {
		return fmt.Errorf("migrating %s: %w", m.Component, Explain(err))
	}
	defer func() { _ = conn.Close() }()
	d, err := Detect(ctx, conn)
	if err != nil {
		return fmt.Errorf("migrating %s: %w", m.Component, err)
	}
	list, err := m.load(d)
	if err != nil {
		return err
	}
	if pending, err := m.pending(ctx, conn, d, list); err == nil && len(pending) == 0 {
		return nil
	}
	if err := m.locked(ctx, conn, d, list); err != nil {
		return fmt.Errorf("migrating %s: %w", m.Component, Explain(err))
	}
	return nil
}

// lockID is the number of the advisory lock on PostgreSQL. It is arbitrary, so that other programs are unlikely to use
// it.
const lockID = 0x7261626269746474

// locked applies the pending migrations while holding a lock against other processes. PostgreSQL and SQLite do this in
// one transaction. MySQL cannot, so it holds a named lock.
func (m Migrations) locked(ctx context.Context, conn Conn, d Dialect, list []migration) (err error) {
	begin, end, undo := "BEGIN", "COMMIT", "ROLLBACK"
	switch d {
	case MySQL:
		// The name of the lock is global to the server, so it includes the database.
		const name = "CONCAT('rabbitdelay:', LEFT(SHA2(DATABASE(), 256), 32))"
		var got sql.NullInt64
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK("+name+", 60)").Scan(&got); err != nil {
			return err
		}
		if got.Int64 != 1 {
			return errors.New("another process has held the migration lock for more than 60s; check whether it is stuck")
		}
		begin, end, undo = "", "SELECT RELEASE_LOCK("+name+")", "SELECT RELEASE_LOCK("+name+")"
	case SQLite:
		begin = "BEGIN IMMEDIATE"
	}
	if begin != "" {
		if err := beginBusy(ctx, conn, begin); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			// The connection returns to the pool and must not be left in a transaction, even if the error is that ctx
			// has ended.
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), undo)
		}
	}()
	if d == PostgreSQL {
		if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockID)); err != nil {
			return err
		}
	}
	if _, err := conn.ExecContext(ctx, schemaTable); err != nil {
		return err
	}
	todo, err := m.pending(ctx, conn, d, list)
	if err != nil {
		return err
	}
	for _, mig := range todo {
		for _, statement := range statements(mig.text) {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", mig.name, err)
			}
		}
		if _, err := conn.ExecContext(ctx, d.Bind("INSERT INTO rabbitdelay_schema (component, version, applied_at) VALUES (?, ?, ?)"),
			m.Component, mig.version, time.Now().UnixMilli()); err != nil {
			return err
		}
	}
	_, err = conn.ExecContext(ctx, end)
	return err
}

// beginBusy begins a transaction with the given statement. On SQLite it waits for the single writer, even if no
// busy_timeout is set.
func beginBusy(ctx context.Context, conn Conn, begin string) error {
	for {
		_, err := conn.ExecContext(ctx, begin)
		if err == nil || !Transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (m Migrations) pending(ctx context.Context, conn Conn, d Dialect, list []migration) ([]migration, error) {
	rows, err := conn.QueryContext(ctx, d.Bind("SELECT version FROM rabbitdelay_schema WHERE component = ?"), m.Component)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	applied := map[int]bool{}
	for rows.Next() {
		var v int
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		applied[v] = true
	}
	var todo []migration
	for _, mig := range list {
		if !applied[mig.version] {
			todo = append(todo, mig)
		}
	}
	return todo, rows.Err()
}

// statements splits a file at semicolons at the end of a line.
func statements(text string) []string {
	var list []string
	for s := range strings.SplitSeq(text+"\n", ";\n") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}
