// Package serve has the process that runs for weeks, rabbitdelay serve, and users,
// which writes the file of those who may log in there.
//
//	serve.go  the command, its settings and its HTTP server
//	relay.go  what it does in the background: the client, the relay, its health
//	users.go  users add, token, remove
//	healthcheck.go  asks a serve that runs
package serve
