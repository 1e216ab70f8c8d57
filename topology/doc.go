// Package topology describes, as data, what must exist on a RabbitMQ broker: objects
// (model.go), destinations (destination.go), what all strategies share (delivery.go),
// the way of a message (route.go) and retries (retry.go). It merges descriptions
// (merge.go), reads them from YAML (yaml.go; duration.go) and validates them (validate.go), with an
// error for each mistake (problem.go).
//
// It does no I/O and knows nothing of what is on a broker. Below it are what was found
// there (observed), the comparison with it (plan), what may be deleted (removal) and
// what is wrong (doctor), all of them pure. Package live reads brokers and changes
// them.
package topology
