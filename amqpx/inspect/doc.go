// Package inspect is for commands, consoles and scripts that administrators use to look after the queues of services. A
// service that only sends and consumes messages does not need it.
//
//   - Peek shows the messages at the head of a queue, and leaves them there.
//   - Walk reads a whole queue, and leaves the messages there.
//   - Requeue sends the dead letters that a filter selects back to where they came from, or discards them. It can save
//     them to a file first, and send them from there.
//   - Republish forwards messages that another program published, and Rehearsal finds out which of them the broker
//     would refuse.
package inspect

// Files, for contributors to this package:
//
//   - deadletter.go: a message in a dead-letter queue, and the filter that selects such messages
//   - peek.go: Peek shows the messages at the head of a queue and leaves them there
//   - walk.go: Walk reads all messages of a queue and leaves them there
//   - take.go: takes messages from a queue, holds them and puts them back
//   - requeue.go: Requeue sends dead letters back or discards them; requeue_queue.go: the queue or file that it takes
//     them from; requeue_send.go: what it does with each message
//   - saved.go: messages in a file; saved_values.go: the types of their headers
//   - userid.go: which user ids the broker accepts
//   - passon.go: Republish forwards messages that another program published, and Rehearsal checks which of them would
//     be refused; Dial opens a separate connection
//
// The package uses internal/inner for what it needs from a Client beyond the exported methods.
//
// How messages are taken and put back:
//
//   - A consumer receives messages in batches of up to 250, or fewer if more would exceed 16 MiB. Its prefetch is the
//     size of the batch, and no message is acknowledged before the consumer is cancelled. It therefore receives no
//     messages beyond that number, and a batch costs three round trips. If no message arrives, basic.get shows whether
//     the queue is empty or only slow.
//   - Before RabbitMQ 4.3, a quorum queue counts each message that is put back towards its delivery limit. A message
//     near the limit is copied to the end of the queue instead, and the copy is confirmed before the original is
//     acknowledged. The limit cannot be read over AMQP alone, because the broker uses the lower of the argument and a
//     policy, and a declaration with the same argument succeeds under any policy. Without the management API, all
//     messages that stay are therefore copied to the end of the queue. Dry runs and peeks must change nothing, so they
//     are refused in this case. A classic queue, which a declaration identifies, has no limit. Since 4.3, only messages
//     that return because their channel was closed count.
