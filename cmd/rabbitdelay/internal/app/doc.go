// Package app implements what the commands of rabbitdelay have in common. It opens brokers and databases, asks for
// consent before changes, and parses flags that several commands have. It does not know any command.
//
//	app.go       App, exit codes; durations, times, headers, bodies
//	change.go    the steps of every command that changes something: count, ask, do, tell
//	broker.go    connections, clients, the management API, the source for inspecting a broker
//	database.go  the business database with its tasks, and the recurring tasks of the file
package app
