// Package doctor finds problems on a broker before they cause damage: policies that would shorten delays,
// dead-lettering that differs from the configuration, messages that have no destination, and missing permissions.
//
// It evaluates a Snapshot (snapshot.go) and does no I/O. Package snapshot takes snapshots. Diagnose (doctor.go) runs
// every check. Each check is in the file named after its subject. Findings and their Report are defined in finding.go,
// and render.go formats them for display. The doctor cannot see the settings of nodes, but a note lists the nodes
// without advanced.config.
package doctor
