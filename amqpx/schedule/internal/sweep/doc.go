// Package sweep decides which tasks are sent again and when. It also ends the leases of dead
// processes, and fails rows without a valid due time. It claims and sends tasks through the relay.
//
//	sweep.go     the sweep of all destinations, and of a single one
//	evidence.go  the evidence that messages are lost, and how many tasks are tried; pure functions
//
// The reasons for this design:
//
//   - A late task is not a lost task. If it were treated as lost, the effects of a five-minute pause
//     of consumers at 60 % load would never end: copies of waiting tasks would use the spare
//     capacity, and make the tasks behind them late in turn.
//   - Queues deliver messages in order, so the condition is not resend_at <= now but resend_at <=
//     reached, where reached is when the last message arrived whose task is done. It is read from
//     the newest 200 done tasks of a destination with the index of List. Nothing has to be
//     maintained for it, and it regulates itself, because copies join the same queue.
package sweep
