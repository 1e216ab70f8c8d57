// Package relay claims tasks from the table, publishes their messages and records the
// outcomes. It knows rows, messages, and destinations with their failures. It does not know
// why a task exists, what its handler does, or when it has to be sent again.
//
// A task goes through the files from top to bottom:
//
//	relay.go    the loop, and one step of it
//	claim.go    which tasks are claimed and in which order; share.go: how lanes share a batch
//	gate.go     paused lanes and rate limits (ceilings); bucket.go: the rate limiter
//	flight.go   batches that are published together, and slow batches that run in the background
//	send.go     publishing, and what a failure says about a task
//	settle.go   recording outcomes in the table
//	check.go    which tasks can be sent at all
//	trouble.go  back-off of destinations that reject messages
//	beat.go     the heartbeat of this relay
//
// The reasons for this design:
//
//   - A crash between a confirm and its mark repeats a publish but never loses one. The relay
//     never waits for a row that a handler has locked.
//   - Claims are divided by destination, so that the backlog of one destination does not delay
//     another. A loose index scan finds the destinations in a few steps each, however many rows
//     are waiting. Each destination gets an even share, unused shares go to the others, and the
//     destination that got the fewest tasks comes first in the next claim. Lengths are read before
//     bodies, so that a claim stays within Config.BatchBytes (16 MiB by default).
//   - A rejection, a nack, or a missing answer while other destinations get answers counts against
//     exactly that destination. It leaves the shared batches and is tried separately: with 10 tasks
//     after a pause that doubles from 1 s to 1 min, and with twice as many after each success. A
//     missing destination is tried with 100 tasks every second, which fail one by one. When no
//     destination gets answers, the broker is the cause, and no destination is blamed.
//   - The row that shows that a relay runs is renewed every 10 s. Nothing depends on it.
package relay
