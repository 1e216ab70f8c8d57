// Package serve has the long-running process, rabbitdelay serve, and the command users, which writes the file of the
// users who may log in there.
//
//	serve.go  the command, its settings and its HTTP server
//	relay.go  the background work: the client, the relay, their health
//	users.go  users add, token, remove
//	healthcheck.go  checks a running serve
package serve
