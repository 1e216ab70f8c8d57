// Package plugin delays messages by the x-delayed-message exchange of the
// rabbitmq_delayed_message_exchange plugin, where a broker has it (plugin.go), and
// finds what on a broker depends on the plugin (survey.go). It does no I/O.
package plugin
