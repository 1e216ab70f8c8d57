// Package plan compares a described topology with the objects on a broker. It finds missing and different objects and
// decides whether Apply refuses (plan.go), finds policies that would break objects (policies.go), and formats the
// result for display and as JSON (render.go). It does no I/O.
package plan
