// Package live reads and changes what is on a broker, where package topology only
// describes and decides: it inspects over AMQP and through the management API,
// applies what is missing, destroys layouts, and probes for the delayed message
// plugin.
package live
