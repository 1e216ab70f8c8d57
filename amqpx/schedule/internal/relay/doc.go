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
package relay
