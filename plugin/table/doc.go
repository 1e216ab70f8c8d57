// Package table is the table in which the x-delayed-message plugin keeps what waits:
// Erlang expressions for "rabbitmqctl eval" that read it and delete single rows
// (erlang.go), and what these print (lines.go). It runs nothing itself. The expressions
// are for RabbitMQ 3.10 to 4.2.
package table
