// Package faults tests rabbitdelay's guarantees under faults. It runs a workload of known messages through real brokers
// and databases, and injects faults of the network, the brokers, the consumers and the database in a sequence that a
// seed determines. Then it compares the results that producers received with the effects that consumers committed.
//
// Run `make faults DURATION=1h SEED=7` for a long run that prints the ledger.
package faults
