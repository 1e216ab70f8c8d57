// Package schedules implements the commands for recurring tasks, rabbitdelay schedules. They use the store of
// amqpx/schedule and do not connect to a broker.
//
//	schedules.go  the group of commands, and the commands list, show and next
//	change.go     the commands add, edit, pause, resume, run and delete
package schedules
