// Package plan compares a described topology with what was found on a broker: which
// objects are missing or differ and whether Apply would refuse (plan.go), which policies
// would break them (policies.go), and all of it for people and machines (render.go). It
// does no I/O.
package plan
