// Package tasks tests tasks, idempotent handlers and the SQL of docs/tasks.md on real databases: SQLite, PostgreSQL
// (also by pgx and through PgBouncer), MariaDB and MySQL. The tests create most deliveries themselves, because package
// conformance covers real ones.
package tasks
