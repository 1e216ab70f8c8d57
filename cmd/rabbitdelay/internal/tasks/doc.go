// Package tasks implements the commands for scheduled tasks: rabbitdelay tasks, and migrate, which creates their
// tables. They use the store of amqpx/schedule and send nothing. Only revive connects to a broker.
//
//	tasks.go    the group of commands
//	filter.go   flags that select tasks
//	list.go     the commands list, show and count
//	errors.go   the errors command: groups failed tasks by their errors
//	add.go      the add command, and the flags for a message, which schedules uses too
//	change.go   the commands cancel, run, reschedule and delete, for ids or for a filter
//	held.go     the commands pause, resume and held, for destinations
//	revive.go   the revive command, which also removes the dead letters of revived tasks
//	migrate.go  the migrate command
package tasks
