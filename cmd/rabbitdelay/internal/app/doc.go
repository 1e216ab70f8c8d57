// Package app implements what the commands of rabbitdelay have in common. It opens brokers and databases, asks for
// consent before changes, and parses flags that several commands have. It does not depend on any command.
//
//	app.go       App, the exit codes, and flag values: durations, times, headers and bodies
//	change.go    the steps of every command that changes something: it counts, asks, makes the change and reports
//	broker.go    connections, clients, the management API, and the source for inspecting a broker
//	database.go  the business database with its tasks, and the recurring tasks in the file
package app
