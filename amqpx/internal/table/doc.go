// Package table determines which AMQP tables amqp091 can write and read again. It knows about the encoding of headers,
// but nothing about other parts of a message or about brokers.
//
//   - measure.go: checks whether a table can be written
//   - reader.go: replaces received headers that amqp091 cannot read
package table
