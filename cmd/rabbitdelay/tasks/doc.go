// Package tasks has the commands on scheduled tasks: rabbitdelay tasks, and migrate, which makes their
// tables. It asks the store of amqpx/schedule, and sends nothing; only revive talks to a broker.
//
//	tasks.go    the group of commands
//	filter.go   flags that choose tasks
//	list.go     list, show, count
//	add.go      add, with a unique key or without; the flags of what a task sends, which schedules has too
//	change.go   cancel, fire, reschedule, delete: by ids or by filters
//	held.go     pause, resume, held: destinations
//	revive.go   revive, and the dead letters of what was revived
//	migrate.go  migrate
package tasks
