// Package table is the table in which the x-delayed-message plugin keeps what waits,
// as Erlang expressions for "rabbitmqctl eval" and what these print. It runs nothing
// itself. The expressions are for RabbitMQ 3.10 to 4.2.
package table
