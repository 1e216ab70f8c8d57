// Package removal decides which objects of a topology may be deleted from a broker, so that nothing is lost
// that somebody still needs: the decision (removal.go) by what an object is, by other layouts
// and by what needs it (rules.go), the order of deletion (order.go), why nothing may be touched (refusal.go), and
// all of it for people and machines (render.go). It does no I/O; package live deletes.
//
// What a name does not tell apart stays. Names of the ttl strategy, of the native strategy and of the plugin do
// not distinguish configurations: auto with another bucket layout uses the same objects. They stay while the
// broker has a layout that is not to be destroyed, unless Options.Layouts names them. A configuration without
// any other object on the broker is not seen.
//
// A dead-letter queue stays while its destination's queue stays, whatever arguments that has, because consumers
// publish there themselves. It goes after that queue, because a message that arrives at the last moment keeps
// that queue. The exchanges naming.DeclaredExchange go before the first queue, so that a client that starts
// looks again. The plugin's exchange has no entry to take away: stop its senders first.
package removal
