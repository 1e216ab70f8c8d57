// Package service is what the console's pages and its API share: what can be seen of
// tasks, messages and layouts, what can be changed, by whom, and the record of who did.
// It knows databases and brokers, and nothing of HTTP, HTML or JSON.
//
//   - core.go: what a Core works on; read.go: how it reads a database that may be slow
//   - caller.go: roles, callers, what only an operator may see, and who is told why
//   - errors.go: what went wrong
//   - overview.go, histogram.go: the first page, one look for all readers, and what is kept
//     because it costs something
//   - history.go: how tasks ended until now, kept in the database
//   - tasks.go, schedule.go, action.go: tasks, new tasks, and changes of one or many
//   - recurring.go: recurring tasks, and destinations that are held back
//   - dead.go, layouts.go: dead letters, retirement
//   - jobs.go: the life of a job, and reading the audit; ledger.go: writing both, kept by ledger_table.go in
//     the database or by ledger_memory.go without one
//
// Why it is built so:
//
//   - All readers share one look, taken while somebody looks. What reads an index of all tasks is
//     kept for twenty times as long as it took, at most a twentieth of the database's time. A
//     hanging database gives no error, so readers first ask something cheap (Store.Ping).
//   - The history is written once, two minutes after its span, as a function of the tasks: any
//     console may write it, writing twice changes nothing, and a later console reads what is
//     missing. A counter raised by handlers would have none of that, and all would wait for its
//     row. Relays write none: without a console nobody looks.
//   - A batch of a job, the job's place and the ids of its tasks commit together, if the job is
//     still this process's: a process that takes over, even from one that is only slow, moves
//     nothing twice.
package service
