// Package amqpx sends messages that RabbitMQ delivers later, and consumes them.
//
// A Client publishes through a Strategy (package dlx: ttl and bucket; package
// plugin) with publisher confirms, keeps its connections alive for ever, and
// runs consumers whose handler's error decides the fate of a message.
package amqpx
