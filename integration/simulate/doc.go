// Package simulate runs clients, relays, consumers and a database in virtual time, on RabbitMQ in memory. A seed
// decides what happens, including faults, and a model checks the result. TestDefects plants mistakes and checks that
// they are found.
package simulate
