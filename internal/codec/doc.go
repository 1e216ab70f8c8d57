// Package codec encodes and decodes AMQP 0-9-1 values, field tables, the properties of the basic class, and frames. It
// only handles bytes, and knows nothing about methods, connections or brokers.
//
//   - decoder.go, encoder.go: values and field tables
//   - properties.go: the properties of a message
//   - frame.go: frames
package codec
