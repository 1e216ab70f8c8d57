// Package simulate runs clients, relays, consumers and a database in virtual time, on RabbitMQ in memory. A seed
// determines the scenario, including its faults, and a model checks the result. TestDefects plants defects in the code
// and checks that the model finds them.
package simulate
