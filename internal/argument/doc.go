// Package argument defines the arguments of queues, exchanges and bindings: RabbitMQ's names for them (argument.go),
// and the comparison and formatting of values (value.go). It is independent of the objects that have these arguments.
package argument
