// Package relay takes tasks out of the table, gives their messages to the broker and
// settles what became of them. It knows destinations and their troubles, rows and
// messages; it does not know why a task exists, what its handler does, or when it is to be
// sent again.
//
// A task goes through the files from top to bottom:
//
//	relay.go    the loop, and one step of it
//	claim.go    which tasks are taken: lanes and their turns; share.go: shares of a batch
//	gate.go     what is paused, or has a ceiling; bucket.go: how many in a time
//	flight.go   what is published together, and what nobody waits for
//	send.go     publishing, and what a failure says about a task
//	settle.go   what becomes of it in the table
//	check.go    which tasks can be sent at all
//	trouble.go  destinations that do not take their messages
//	beat.go     that this relay runs
//
// Why it is built so:
//
//   - A crash between a confirm and its mark repeats a publish and drops none. No row that a
//     handler holds is waited for.
//   - Claims are divided by destination, so that one's backlog delays nobody else. A loose index
//     scan finds the destinations in a few steps each, however many rows wait. Each gets an even
//     share, unused shares go to the others, and whoever got least comes first next. Lengths are
//     read before bodies: a claim has at most 16 MiB.
//   - A refusal, a nack, or silence while others get answers counts for its exact destination,
//     which leaves the shared batches and is tried alone: 10 tasks after a pause that doubles from
//     1 s to 1 min, twice as many after each success; of a missing destination 100 each second,
//     which fail one by one. When nobody gets answers it is the broker, and no destination is
//     blamed.
//   - The row that shows who relays is renewed every 10 s; nothing depends on it.
package relay
