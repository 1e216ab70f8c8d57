// Package argument knows the arguments of queues, exchanges and bindings: RabbitMQ's
// names for them (argument.go), and how values compare and read (value.go). It knows
// no object that has arguments.
package argument
