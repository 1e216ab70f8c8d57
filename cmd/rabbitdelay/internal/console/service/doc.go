// Package service implements what the console's pages and its API have in common: reading tasks, messages and layouts,
// changing them, checking who may do this, and keeping the audit. It accesses databases and brokers, but does not
// depend on the HTTP, HTML and JSON with which the console presents them.
//
//   - core.go contains the configuration and life cycle of a Core, and read.go reads from a database that may be slow.
//   - caller.go defines roles and callers, and hides from viewers what only an operator may see.
//   - errors.go defines the errors and classifies them.
//   - overview.go and histogram.go provide the data of the first page: one survey that all readers share, and a cache
//     for expensive results.
//   - history.go counts the tasks that ended, and keeps the counts in the database.
//   - tasks.go and schedule.go read and schedule tasks. action.go changes one task or, in a job, many. What a change
//     does and how the audit describes it is in package change, which commands use too.
//   - recurring.go reads and changes recurring tasks, and destinations that are held back.
//   - dead.go reads, requeues and discards dead letters, and layouts.go retires earlier layouts.
//   - jobs.go runs jobs and reads the audit. ledger.go writes both. ledger_table.go stores them in
//     the database, and ledger_memory.go in memory if there is no database.
//
// The reasons for this design:
//
//   - All readers share one survey, which is only taken while there are readers. The result of a
//     query that reads an index of all tasks is kept for twenty times as long as the query took, so
//     these queries use at most a twentieth of the database's time. A hanging database returns no
//     error, so readers first send it a cheap query (Store.Ping).
//   - A span of the history is written once, two minutes after its end, and derives from the tasks
//     alone. Any console may write it, writing it twice changes nothing, and a console that starts
//     later reads the missing spans. A counter that handlers increment would have none of these
//     properties, and all handlers would contend for its row. Relays do not write the history,
//     because only consoles read it.
//   - A batch of a job commits in one transaction with the job's position and the ids of the changed
//     tasks, and only if this process still owns the job. A process that takes the job over therefore
//     does not reschedule any task a second time, even if the previous owner is not dead but slow.
package service
