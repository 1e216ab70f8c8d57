// Package rows has the SQL of schedule's tables and everything in which the dialects
// differ. It knows rows and statements; it knows no message, no broker, no loop and
// none of the face's types, and it decides nothing: each method is one statement, or
// the few that make one step of a transaction.
//
//	conn.go       a database or a transaction, and how statements run on it
//	dialect.go    what differs between the dialects, by name
//	instant.go    instants as the table has them
//	task.go       a task's row; foreign.go: rows that other programs wrote
//	filter.go     which tasks; list.go, count.go: reading them; ended.go: how they ended
//	write.go      inserting and changing tasks; tags.go: their tags
//	unique.go     unique keys, and the pending task that has one
//	claim.go      what the relay takes, and settles
//	gate.go       rabbitdelay_destinations: what is paused, or has a ceiling
//	overdue.go    what the sweeper reads
//	fence.go      what a message may do; attempt.go: attempts, leases and effects
//	bulk.go       pages and locks of a bulk change
//	schedules.go  rabbitdelay_schedules, and the tasks of its rows
//	relays.go     rabbitdelay_relays, and which rights a relay needs
//
// Why it is built so:
//
//   - A unique key is a column with a unique index over pending rows only (partial; on MySQL over
//     a generated column that is NULL in all others), so no program can make two. A transaction
//     that schedules one waits in the index for a handler that is ending the last one, and always
//     changes the pending row, so that a handler with an older snapshot reads again.
//   - It inserts first (ON CONFLICT DO NOTHING, or MySQL's ON DUPLICATE KEY UPDATE): a look before
//     it would lock a gap on MySQL in which two wait for each other.
//   - A running task holds no key, for what it has not read must not count as done. When it would
//     become pending beside another, the index refuses, and it gives way.
//   - The longest wait of a push counts from created_at, and at its end a push changes no version:
//     otherwise endless pushes could make every message stale before it is handled. For the same
//     reason replacing has no longest wait.
//   - A token in rabbitdelay_effects that is still there when its message is redelivered is of an
//     attempt that ended without an outcome.
//   - On PostgreSQL a statement for many rows has one JSON parameter, planned once for any number,
//     and finds rows by id = ANY (ARRAY (...)); otherwise the planner would read the whole table.
//     Pages keep free space (fillfactor 70), so a claim makes no new index entries.
package rows
