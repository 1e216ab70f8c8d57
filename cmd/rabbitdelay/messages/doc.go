// Package messages has the commands for messages on a broker: send, consume, peek, errors, requeue, discard and
// trace. send and consume declare missing objects and report them. The other commands declare nothing.
//
//	send.go     send messages with a delay
//	doorway.go  checks before send or consume declares something
//	consume.go  the command consume and its output; receive.go  how it receives the messages
//	peek.go     show messages, and group them by their errors
//	requeue.go  requeue: count, ask, do, tell; discard.go  the same for discard
//	trace.go    find one message or task
package messages
