// Package inspect is for commands, consoles and scripts that administrators use to look after the queues of services. A
// service that only sends and consumes messages does not need it.
//
//   - deadletter.go: a message in a dead-letter queue, and the filter that selects such messages
//   - peek.go: Peek shows the messages at the head of a queue and leaves them there
//   - groups.go: GroupErrors groups the messages of a whole queue by similar errors
//   - take.go: takes messages from a queue, holds them and puts them back
//   - requeue.go: Requeue sends dead letters back or discards them; requeue_queue.go: the queue or file that it takes
//     them from; requeue_send.go: what it does with each message
//   - saved.go: messages in a file; saved_values.go: the types of their headers
//   - userid.go: which user ids the broker accepts
//   - passon.go: PassOn forwards messages that another program published, and Rehearsal checks which of them would be
//     refused; Dial opens a separate connection
//
// The package uses internal/inner for what it needs from a Client beyond the exported methods.
//
// How messages are taken, and how they stay in the queue:
//
//   - A consumer receives messages in batches of up to 250, or fewer if they are long (16 MiB). Its prefetch is exactly
//     the size of the batch, and it gets no more than that because no message is acknowledged before the consumer is
//     cancelled. So no messages beyond the limit are taken, and a batch costs three round trips. If no message arrives,
//     basic.get tells an empty queue from a pause.
//   - Before RabbitMQ 4.3, a quorum queue counts each message that is put back towards its delivery limit. A message
//     near the limit is copied to the end of the queue instead, and the copy is confirmed before the original is
//     acknowledged. The limit cannot be read over AMQP alone, because the broker uses the lower of the argument and a
//     policy, and a declaration with the same argument succeeds under any policy. Without the management API, all
//     messages that stay are therefore copied to the end of the queue. A dry run or a peek would have to copy
//     everything in order to change nothing, so it is refused. A classic queue, which a declaration identifies, has no
//     limit. Since 4.3, only messages of a channel that was closed count.
package inspect
