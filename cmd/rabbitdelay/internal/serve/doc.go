// Package serve implements the long-running process, rabbitdelay serve, and the users command, which writes the file
// with the users who may log in.
//
//	serve.go        the serve command, its settings and its HTTP server
//	relay.go        the background work: the client and the relay, and their health
//	users.go        the commands users add, users token and users remove
//	healthcheck.go  the healthcheck command: checks that serve is running
package serve
