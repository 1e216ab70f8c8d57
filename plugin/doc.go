// Package plugin delays messages with the x-delayed-message exchange of the rabbitmq_delayed_message_exchange plugin,
// if the broker has that plugin. It does no I/O.
package plugin
