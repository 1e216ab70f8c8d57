// Package wire maintains a connection to a broker. It dials one of several nodes, identifies what answered if it is not
// a broker, buffers writes, and reconnects when the connection ends.
//
// It knows how AMQP connections are opened and closed. It knows nothing about messages, destinations or the purpose of
// a connection: the owner of a Link sets up each new connection.
//
//   - link.go: a Link, which reconnects and lets callers wait for a connection
//   - status.go: the state of a Link and all changes to it
//   - dial.go, failure.go: opens one connection, and explains why it failed
//   - nodes.go: where to connect
//   - writer.go: buffers writes below AMQP
//   - channel.go: helpers for short-lived channels
package wire
