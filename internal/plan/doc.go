// Package plan compares a topology with the objects on a broker, which package internal/live reads. It finds missing
// and different objects and decides whether Apply refuses (plan.go), finds policies that would break objects
// (policies.go), and formats the result for display and as JSON (render.go).
//
// The state of a broker is data as well: its version and its objects (state.go, queue.go), the settings that policies
// apply to them (policy.go), and bindings that no topology describes and that deliver copies of delayed messages
// elsewhere (strays.go). The package does no I/O.
package plan
