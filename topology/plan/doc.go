// Package plan compares a described topology with what was found on a broker: which
// objects are missing or differ (plan.go), which policies would break them
// (policies.go), whether Apply would refuse (refusal.go), and all of it for people and
// machines (render.go). It does no I/O.
package plan
