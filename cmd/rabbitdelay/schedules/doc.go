// Package schedules has the commands on recurring tasks, rabbitdelay schedules. It
// asks the store of amqpx/schedule, and talks to no broker.
//
//	schedules.go  the group of commands; list, show, next
//	change.go     add, edit, pause, resume, fire, delete
package schedules
