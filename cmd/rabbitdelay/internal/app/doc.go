// Package app has what the commands of rabbitdelay share: it opens brokers and databases, asks before
// something is changed, and reads the flags that several commands have. It knows no command.
//
//	app.go       App, exit codes; durations, instants, headers, bodies
//	change.go    count, ask, do, tell: the steps of every command that changes something
//	broker.go    connections, clients, the management API, what a look at a broker needs
//	database.go  the business database: its tasks, the recurring tasks of the file
package app
