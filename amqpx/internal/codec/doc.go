// Package codec encodes and decodes AMQP 0-9-1: values, field tables, the properties
// of basic, and frames. It knows the bytes alone: no method, no connection, no broker.
//
//   - decoder.go, encoder.go: values and field tables
//   - properties.go: the properties of a message
//   - frame.go: frames
package codec
