// Package layout implements the commands for the objects on a broker that delay messages, and for the messages in them.
// It compares and declares objects with internal/live, deletes them with package destroy, and diagnoses problems with
// package doctor. Only doctor and status read a database, and destroy and retire record what they do in its audit.
//
//	plan.go     the plan and apply commands
//	destroy.go  the destroy and retire commands: count what would be deleted, ask, delete and report
//	doctor.go   the doctor command: reports problems on the broker
//	status.go   the status command: shows waiting messages
//	file.go     commands that read the file without a broker: validate, schema and export
package layout
