// Package plugin delays messages with the x-delayed-message exchange of the rabbitmq_delayed_message_exchange plugin,
// if the broker has that plugin (plugin.go). It also finds the objects on a broker that depend on the plugin
// (survey.go). It does no I/O.
package plugin
