// Package removal decides which objects of a topology may be deleted from a broker without losing anything that is
// still needed. The decision (removal.go) depends on what an object is, on other layouts, and on the objects that need
// it (rules.go). The package also determines the order of deletion (order.go) and the reasons to refuse the whole
// removal (refusal.go), and formats the result for display and as JSON (render.go). It does no I/O. Package destroy
// deletes the objects.
//
// Objects whose owner is not clear from their names stay. The names of the ttl strategy, the native strategy and the
// plugin do not distinguish configurations: for example, auto with another bucket layout uses the same objects. These
// objects stay while the broker has a layout that is not to be destroyed, unless Options.Layouts names them. A
// configuration that has no other object on the broker cannot be detected.
//
// A dead-letter queue stays while its destination's queue stays, regardless of that queue's arguments, because
// consumers publish dead letters themselves. It is deleted after that queue, because the destination's queue stays if a
// message arrives at the last moment. The exchanges whose names begin with naming.DeclaredExchange are deleted before
// the first queue, so that a client that starts checks the topology again. The plugin's exchange has no entry bindings
// to remove, so stop its publishers first.
package removal
