// Package cli is the command rabbitdelay, callable in-process: wiring and
// printing around packages config, amqpx and topology.
package cli
