// Package topology describes, as data, what must exist on a RabbitMQ broker: objects (model.go), destinations
// (destination.go), the objects that all strategies share (delivery.go), the route of a message (route.go) and retries
// (retry.go). It merges descriptions (merge.go), reads them from YAML (yaml.go, duration.go) and validates them
// (validate.go), with an error for each mistake (problem.go). Two more files describe how an existing object differs
// from its description (mismatch.go, conflict.go).
//
// The package does no I/O, and is independent of what exists on a broker. Package plan, which is also pure, compares a
// topology with the objects on a broker. Package live reads and changes brokers.
package topology
