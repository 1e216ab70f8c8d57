// Package sweep decides what is sent again and when, and ends what has been left behind:
// leases of dead processes and rows without an instant. It claims and sends by the relay,
// and knows nothing of how that is done.
//
//	sweep.go     the sweep of all destinations, and of one
//	evidence.go  what says that messages are lost, and how many are tried; pure
//
// Why it is built so:
//
//   - Lateness is no loss. Otherwise a five-minute pause of consumers at 60 % load would never
//     end: copies of waiting tasks would use the spare capacity and make those behind late in
//     turn.
//   - Queues hand messages out in order, so the condition is not resend_at <= now but resend_at <=
//     reached, the instant when the last message came whose task is done. It is read from the
//     newest 200 done tasks of a destination by the index of List, costs nothing to keep, and
//     regulates itself: copies join the same queue.
package sweep
