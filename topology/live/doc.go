// Package live reads and changes the objects on a broker. A Broker plans (broker.go), applies (apply.go), destroys
// and wipes (destroy.go), each with a report (report.go). Ensure (ensure.go) serves clients that start often, and a
// lock (lock.go) keeps concurrent clients apart. The package inspects a broker over AMQP (inspector.go, channels.go)
// or through the management API (management.go, management_call.go). It probes for the delayed message plugin
// (plugin.go), and proves with a canary that a broker delays by an instant (canary.go).
//
// Packages topology, plan and removal decide what to declare and what to delete.
package live
