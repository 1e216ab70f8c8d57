// Package table accesses the table in which the x-delayed-message plugin keeps waiting messages. It generates Erlang
// expressions for "rabbitmqctl eval" that read the table and delete single rows (erlang.go), and parses their output
// (lines.go). It does not run the expressions. They are for RabbitMQ 3.10 to 4.2.
package table
