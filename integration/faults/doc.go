// Package faults proves what rabbitdelay promises while things break. A workload
// of known messages runs through real brokers and databases; faults of the
// network, of brokers, of consumers and of the database are injected in a
// sequence that a seed determines; then what producers were told is compared
// with what consumers committed.
//
// `make faults DURATION=1h SEED=7` runs it long and prints the ledger.
package faults
