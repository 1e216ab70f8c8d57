// Package doctor finds what is wrong with a broker before it bites: policies that would fire delays early,
// dead-lettering that is not what was asked for, messages that wait nowhere, permissions that are missing.
//
// It judges a Snapshot (snapshot.go) and talks to nobody; package live/snapshot takes one. Diagnose (doctor.go)
// runs every check, and each stands in the file of its subject. Findings and their Report are in finding.go,
// which render.go writes for people.
// Settings of nodes cannot be seen; a note tells of a node without advanced.config.
package doctor
