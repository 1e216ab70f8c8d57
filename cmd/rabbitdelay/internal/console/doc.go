// Package console contains an http.Handler that serves web pages and an HTTP API, which show delayed messages and tasks
// and let operators change them. The command "rabbitdelay serve" runs it.
//
// console.go contains the configuration, and the audit for changes made outside of a console. guard.go decides, before
// anything is read, whether a caller may make a request, and limits the size of requests. The package service below it
// works with databases and brokers, the packages page and api present them as web pages and as an API, and the package
// auth manages users.
package console
