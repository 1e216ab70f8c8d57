// Package header defines the headers of a message: rabbitdelay's own headers, the headers that the broker interprets,
// and the properties that rabbitdelay carries in a header for a foreign publisher. It works on tables and deliveries,
// and knows neither the client nor a broker.
//
//   - names.go: the names of the headers, and which of them a message keeps
//   - carried.go: properties that have to be moved while a message waits
//   - record.go: what happened to a message before, and where it was sent to
package header
