// Package tasks has the commands for scheduled tasks: rabbitdelay tasks, and migrate, which creates their tables.
// They use the store of amqpx/schedule and send nothing. Only revive connects to a broker.
//
//	tasks.go    the group of commands
//	filter.go   flags that select tasks
//	list.go     list, show, count
//	errors.go   errors: failed tasks by their errors
//	add.go      add, with or without a unique key; the message flags, which schedules uses too
//	change.go   cancel, fire, reschedule, delete: by ids or by filters
//	held.go     pause, resume, held: destinations
//	revive.go   revive, and removing the dead letters of revived tasks
//	migrate.go  migrate
package tasks
