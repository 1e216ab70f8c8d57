// Package table determines which AMQP tables amqp091 can write and read again. It knows the encoding of headers, but no
// other part of a message, and no broker.
//
//   - measure.go: checks whether a table can be written
//   - reader.go: presents messages whose headers amqp091 cannot read
package table
