// Package messages has the commands on messages of a broker: send, consume, peek,
// errors, requeue, discard and trace. send and consume declare what is missing, and say
// so; the others declare nothing.
//
//	send.go     messages with a delay
//	doorway.go  what sending or consuming is about to declare
//	consume.go  the command and what it prints; receive.go takes the messages
//	peek.go     messages, where they lie; errors.go groups them by their errors
//	requeue.go  a run of requeue or discard: count, ask, do, tell
//	discard.go  the command discard, and what it asks
//	trace.go    one message or task, wherever it is
package messages
