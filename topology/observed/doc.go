// Package observed describes what was found on a broker, and what of it bears on a
// topology: the broker with its version, its objects and the queues in which messages lie
// until somebody handles them (broker.go, queue.go), what policies set on them (policy.go), and
// bindings out of the delays that nobody described (strays.go). It does no I/O, and judges
// nothing: packages plan, removal and doctor do.
package observed
