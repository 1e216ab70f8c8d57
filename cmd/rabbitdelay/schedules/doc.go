// Package schedules has the commands for recurring tasks, rabbitdelay schedules. They use the store of amqpx/schedule
// and do not connect to a broker.
//
//	schedules.go  the group of commands; list, show, next
//	change.go     add, edit, pause, resume, fire, delete
package schedules
