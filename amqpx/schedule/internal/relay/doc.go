// Package relay claims tasks from the table, publishes their messages and records the outcomes. It knows about rows,
// messages, and the failures of destinations. It knows nothing about why a task exists, what its handler does, or when
// a task has to be sent again. A lane is a queue, or an exchange with all its routing keys. A target is the exact
// destination of a message, including the routing key.
//
// A task goes through the files from top to bottom:
//
//	relay.go       the loop, and one step of it
//	plan.go        when tasks are claimed, and how long they wait to share a batch
//	claim.go       which tasks are claimed and in which order
//	share.go       how lanes share a batch
//	gate.go        paused lanes and rate limits
//	bucket.go      the rate limiter
//	batch.go       batches that are published together, and slow batches that run in the background
//	send.go        publishing, and what a failure says about a task
//	settle.go      recording outcomes in the table
//	check.go       which tasks can be sent at all
//	stuck.go       rate limits that a session has locked without using them
//	backoff.go     back-off of destinations that reject messages
//	beat.go        the heartbeat of this relay
//	statistics.go  the database's statistics about tables that grow fast
//
// The reasons for this design:
//
//   - Tasks that are due soon are claimed in batches, about twice a second. When each one was claimed as soon as it was
//     written, a task took one and a half times as much processor time.
//   - After a crash between a confirm and the update of the row, a message is published twice, but never lost. The
//     relay never waits for a row that a handler has locked.
//   - Claims are divided by destination, so that the backlog of one destination does not delay
//     another. A loose index scan finds the destinations in a few steps each, however many rows
//     are waiting. Each destination gets an even share, unused shares go to the others, and the
//     destination that got the fewest tasks comes first in the next claim. Lengths are read before
//     bodies, so that a claim stays within 16 MiB.
//   - A rejection, a nack, or a missing answer while other destinations get answers counts only against that
//     destination. That destination is removed from the shared batches and tried separately: with 10 tasks after a
//     pause that doubles from 1 s to 1 min, and with twice as many after each success. A missing destination is tried
//     with 100 tasks every second, which fail one by one. When no destination gets answers, the broker is the cause,
//     and no destination is blamed.
//   - Every 10 s, a relay renews the row that shows that it is running. Nothing depends on that row.
package relay
