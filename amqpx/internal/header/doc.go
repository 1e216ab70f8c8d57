// Package header knows the headers of a message: those that rabbitdelay writes, those that
// the broker interprets, and what it carries there for a foreign publisher. It knows tables
// and deliveries as they come, and neither the client nor a broker.
//
//   - names.go: which headers there are, and which a message keeps
//   - carried.go: what cannot stay where it belongs while a message waits
//   - record.go: what happened to a message before, and where it was sent to
package header
