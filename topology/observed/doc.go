// Package observed describes the objects that were found on a broker and that matter to a topology: the broker with
// its version, its objects, and the queues in which messages stay until somebody handles them (broker.go, queue.go),
// the settings that policies apply to them (policy.go), and undescribed bindings that lead messages out of the delays
// (strays.go). It does no I/O and makes no decisions. Packages plan, removal and doctor evaluate the data.
package observed
