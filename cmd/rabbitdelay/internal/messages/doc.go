// Package messages implements the commands for messages on a broker: send, consume, peek, errors, requeue, discard and
// trace. send and consume declare missing objects and report them. The other commands declare nothing.
//
//	send.go     the send command: sends messages with a delay
//	doorway.go  checks that run before send or consume declares an object
//	consume.go  the consume command and its output
//	receive.go  receiving messages for consume
//	peek.go     the peek and errors commands: show messages, and group them by their errors
//	requeue.go  the requeue command: counts the messages, asks, sends them and reports
//	discard.go  the discard command, with the same steps
//	trace.go    the trace command: finds one message or task
package messages
