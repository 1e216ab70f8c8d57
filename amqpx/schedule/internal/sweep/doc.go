// Package sweep decides which tasks are sent again and when. It also ends the leases of dead
// processes, and fails rows without a valid due time. It claims and sends tasks through the relay.
//
//	sweep.go     the sweep of all destinations, and of a single one
//	evidence.go  pure functions that judge the evidence for lost messages, and how many tasks to try
//
// The reasons for this design:
//
//   - A late task is not a lost task. If late tasks were treated as lost, a system at 60 % load would never recover
//     from a five-minute pause of its consumers: copies of waiting tasks would use the spare capacity, and would make
//     the tasks behind them late in turn.
//   - Queues deliver messages in order, so the condition is not resend_at <= now but resend_at <= reached, where
//     reached is the arrival time of the last message whose task is done. It is computed from a destination's newest
//     200 done tasks, which the index of List finds, so no additional state is needed. The condition also regulates
//     itself, because copies join the same queue.
package sweep
