// Package layout has the commands on what is on a broker: the objects that delay messages, and what waits in
// them. It compares, declares and removes through topology/live, and judges by topology/doctor; only doctor
// and status look into a database.
//
//	plan.go     plan, apply
//	destroy.go  destroy, retire: count, ask, do, tell
//	doctor.go   what is wrong
//	status.go   what waits where
//	file.go     the file, without a broker: validate, schema, export
package layout
