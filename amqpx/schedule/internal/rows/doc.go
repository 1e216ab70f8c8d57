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
package rows
