// Package wire keeps a connection to a broker for ever. It dials one of several nodes,
// says what answered when that is not a broker, gathers what is written, and begins
// again when the connection ends.
//
// It knows AMQP's handshake and its end. It does not know messages, destinations or
// what a connection is for: the owner of a Link sets each fresh connection up.
//
//   - link.go: a Link, which connects again and again, and those who wait for it
//   - status.go: the one state of a Link and the one place where it changes
//   - dial.go, failure.go: one connection, and why there is none
//   - nodes.go: where to connect
//   - writer.go: gathers writes below AMQP
//   - channel.go: channels that come and go
package wire
