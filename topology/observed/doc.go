// Package observed describes what was found on a broker, and what of it bears on a
// topology: the objects (broker.go, queue.go), its version (version.go), what policies set on them (policy.go),
// queues in which messages lie until somebody handles them (kept.go), and bindings out
// of the delays that nobody described (strays.go). It does no I/O, and judges nothing:
// packages plan, removal and doctor do.
package observed
