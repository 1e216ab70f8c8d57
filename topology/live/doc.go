// Package live reads and changes what is on a broker. A Broker plans (broker.go), applies (apply.go; ensure.go for
// clients that start often; lock.go keeps them apart), destroys and wipes (destroy.go), each with a report (report.go).
// It looks over AMQP (inspector.go; channels.go) or through the management API (management.go; management_call.go),
// probes for the delayed message plugin (plugin.go), and proves by a canary that a broker delays by an instant
// (canary.go).
//
// What is to be declared or deleted it is told by packages topology, plan and removal.
package live
