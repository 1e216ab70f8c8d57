// Package rows has the SQL of schedule's tables and all differences between the dialects. It knows
// rows and statements. It does not know messages, the broker, loops or the public types of package
// schedule, and it makes no decisions: each method is one statement, or the few statements of one step
// of a transaction.
//
//	conn.go       a database or a transaction, and how statements run on it
//	dialect.go    the differences between the dialects, by name
//	instant.go    conversion of times to and from columns
//	task.go       a task's row; foreign.go: rows that other programs wrote
//	filter.go     filters; list.go, count.go: reading tasks; ended.go: how they ended
//	write.go      inserting and changing tasks; tags.go: their tags
//	unique.go     unique keys, and the pending task of a key
//	claim.go      claiming tasks and recording the outcomes
//	gate.go       rabbitdelay_destinations: pauses and ceilings
//	overdue.go    reads of the sweeper
//	fence.go      checking messages against rows; attempt.go: attempts, leases and effects
//	bulk.go       pages and locks of a bulk change
//	schedules.go  rabbitdelay_schedules, and the tasks of its rows
//	relays.go     rabbitdelay_relays, and the permissions that a relay needs
//
// The reasons for this design:
//
//   - A unique key is a column with a unique index over pending rows only, so that no program can
//     create two. The index is partial; on MySQL it is over a generated column that is NULL in all
//     other rows. A transaction that schedules a key waits in the index for a handler that is ending
//     the last task. It always changes the pending row, so that a handler with an older snapshot reads
//     again.
//   - Scheduling a key inserts first (ON CONFLICT DO NOTHING, or MySQL's ON DUPLICATE KEY UPDATE).
//     A read before the insert would lock a gap on MySQL, in which two transactions would wait for each
//     other.
//   - A running task does not have its key, because changes that it has not read must not count as
//     done. If it would become pending while another task of the key is pending, the index
//     refuses, and it gives way.
//   - The longest wait of a task that is pushed back counts from created_at. After that, pushing it
//     back changes no version. Otherwise endless pushes could make every message stale before it is
//     handled. For the same reason, replacing has no longest wait.
//   - If a token is still in rabbitdelay_effects when its message is redelivered, it belongs to an
//     attempt that ended without an outcome.
//   - On PostgreSQL a statement for many rows has one JSON parameter, so that it is planned once for
//     any number of rows. It finds rows by id = ANY (ARRAY (...)), because otherwise the planner would
//     read the whole table. Pages keep free space (fillfactor 70), so that a claim creates no new index
//     entries.
package rows
