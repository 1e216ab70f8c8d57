// Package header defines the headers of a message: rabbitdelay's own headers, the headers that the broker interprets,
// and the properties that rabbitdelay carries in a header for other publishers. It works on tables and deliveries, and
// knows nothing about clients or brokers.
//
//   - names.go: the names of the headers, and which of them a message keeps
//   - carried.go: properties that have to be moved into a header while a message is delayed
//   - record.go: the record of a message's earlier attempts, and its original destination
package header
