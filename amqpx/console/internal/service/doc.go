// Package service is what the console's pages and its API share: what can be seen of
// tasks, messages and layouts, what can be changed, by whom, and the record of who did.
// It knows databases and brokers, and nothing of HTTP, HTML or JSON.
//
//   - core.go: what a Core works on, and how it reads a database that may be slow
//   - caller.go: roles and callers; veil.go: what only an operator may see
//   - errors.go: what went wrong, and who is told why
//   - overview.go, histogram.go: the first page, one look for all readers; kept.go: what is
//     kept because it costs something
//   - history.go: how tasks ended until now, kept in the database by history_table.go
//   - tasks.go, schedule.go, action.go: tasks, new tasks, and changes of one or many
//   - recurring.go, dead.go, layouts.go: recurring tasks, dead letters, retirement
//   - jobs.go: the life of a job; ledger.go: audit and jobs, kept by ledger_table.go in
//     the database or by ledger_memory.go without one
package service
