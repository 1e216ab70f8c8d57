// Package taskview reads what the operator's program shows about tasks, beyond what a user's program needs: histograms,
// statistics of finished tasks, groups of errors, running relays. The commands, the console and the API use it. It is
// in the module's top-level internal directory because the program is outside of amqpx, and because the suites test it
// on each database.
//
//	store.go         Store, a schedule.Store with these reads
//	histogram.go     tasks by due time
//	completion.go    how tasks ended
//	errorgroups.go   tasks by error
//	ahead.go         tasks whose messages are on the broker, and tasks that wait for a retry
//	destinations.go  which destinations have pending tasks, are known, or are not listed
//	property.go      the properties of a task's message that flags, files and forms set
//	recurring.go     the state of a recurring task, and its next occurrences
//	effects.go       what handlers have recorded about a task
//	relays.go        the processes that relay tasks
//	cursor.go        checks of positions that users enter
package taskview
