// Package plugin delays messages by the x-delayed-message exchange of the
// rabbitmq_delayed_message_exchange plugin, where a broker has it.
package plugin
