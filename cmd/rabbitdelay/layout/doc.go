// Package layout has the commands for the objects on a broker that delay messages, and for the messages in them. It
// compares, declares and removes objects with topology/live, and diagnoses with topology/doctor. Only doctor and
// status use a database.
//
//	plan.go     plan, apply
//	destroy.go  destroy, retire: count, ask, do, tell
//	doctor.go   problems on the broker
//	status.go   waiting messages
//	file.go     commands that read the file without a broker: validate, schema, export
package layout
