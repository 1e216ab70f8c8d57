// Package rows contains the SQL of schedule's tables and all differences between the dialects. It deals with rows and
// statements, but not with messages, the broker, loops or the public types of package schedule, and it makes no
// decisions: each method is one statement, or the few statements of one step of a transaction.
//
//	conn.go       a database or a transaction, and how statements run on it
//	dialect.go    the differences between the dialects, by name
//	instant.go    converting times to and from columns
//	columns.go    a task and its columns, from which its statements are built
//	task.go       reading a task's row
//	foreign.go    rows that other programs wrote
//	filter.go     filters
//	list.go       reading tasks
//	count.go      counting tasks
//	errors.go     failed tasks, and counting them by their errors
//	ended.go      how tasks ended
//	write.go      inserting and changing tasks
//	tags.go       the tags of tasks
//	unique.go     unique keys, and the pending task that holds a key
//	claim.go      claiming tasks and recording the outcomes
//	gate.go       rabbitdelay_destinations: pauses and rate limits
//	overdue.go    reads for the sweeper
//	fence.go      checking messages against rows
//	attempt.go    attempts, leases and effects
//	bulk.go       pages and locks of a bulk change
//	schedules.go  rabbitdelay_schedules, and the tasks of its rows
//	relays.go     rabbitdelay_relays, and the permissions that a relay needs
//
// The reasons for this design:
//
//   - A unique key is a column with a unique index over pending rows only, so that no program can create two pending
//     tasks with the same key. The index is partial; on MySQL it is over a generated column that is NULL in all other
//     rows. A transaction that schedules a task with a key waits in the index for a handler that is finishing the key's
//     previous task. The transaction always changes the pending row, so that a handler with an older snapshot reads it
//     again.
//   - Scheduling a task with a key inserts first (ON CONFLICT DO NOTHING, or MySQL's ON DUPLICATE KEY UPDATE). A read
//     before the insert would lock a gap on MySQL, in which two transactions would wait for each other.
//   - A running task does not hold its key, because changes that its handler has not read must not be treated as done.
//     If it would become pending while another task with the key is pending, the index refuses that, and the running
//     task gives way.
//   - The longest wait of a task that is repeatedly postponed is counted from created_at. After that time, postponing
//     the task no longer changes its version. Otherwise, endless postponing could make every message stale before it is
//     handled. Replacing has no longest wait, because a replacement changes the message and therefore always needs a
//     new version.
//   - If a token is still in rabbitdelay_effects when its message is redelivered, the token belongs to an attempt that
//     ended without an outcome.
//   - On PostgreSQL a statement for many rows has one JSON parameter, so that it is planned once for any number of
//     rows. It finds rows by id = ANY (ARRAY (...)), because otherwise the planner would read the whole table. Pages
//     keep free space (fillfactor 70), so that a claim creates no new index entries.
package rows
