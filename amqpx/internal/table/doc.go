// Package table knows which AMQP tables the library can write and read again. It knows
// the encoding of headers and nothing else of messages, and no broker.
//
//   - measure.go: whether a table can be written
//   - reader.go: hands messages on whose headers the library cannot read
package table
