// Package bridge stands in for an exchange of the plugin
// rabbitmq_delayed_message_exchange on a stock broker, for producers that cannot change
// today: they go on publishing to the exchange's name with the header x-delay.
package bridge
