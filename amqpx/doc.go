// Package amqpx sends messages that RabbitMQ delivers later, and consumes them.
//
// A Client publishes through a Strategy (package dlx: ttl and bucket; package
// plugin) with publisher confirms, reconnects for ever, and runs consumers in
// which the handler's error decides what happens to a message.
package amqpx
