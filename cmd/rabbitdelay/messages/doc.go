// Package messages has the commands on messages of a broker: send, consume, peek, errors, requeue, discard
// and trace. send and consume declare what is missing, and say so; the others declare nothing.
//
//	send.go     messages with a delay
//	doorway.go  what sending or consuming is about to declare
//	consume.go  the command, and what it prints; receive.go  how it takes the messages
//	peek.go     messages, where they lie, and grouped by their errors
//	requeue.go  requeue: count, ask, do, tell; discard.go  the same for discard
//	trace.go    one message or task, wherever it is
package messages
