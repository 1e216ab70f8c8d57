// Package inspect is for whoever looks after the queues of services: commands, consoles, and scripts of an
// administrator. A service that sends and consumes does not need it.
//
//   - deadletter.go: a message as it lies in a dead-letter queue, and which of them
//   - peek.go: Peek shows what lies at the head of a queue, and leaves it there
//   - groups.go: GroupErrors groups the messages of a whole queue by their errors; alike.go: which are alike
//   - take.go: messages of a queue, held and put back
//   - requeue.go: Requeue sends dead letters back, or discards them; requeue_queue.go: where it takes them from;
//     requeue_send.go: what becomes of a message
//   - saved.go: messages in a file, saved_values.go the types of their headers
//   - passon.go: PassOn sends on what another program published; what of it would be refused; a connection of
//     one's own
//
// What it needs of a Client beside its methods it has from internal/inner.
//
// How messages are taken, and how they stay:
//
//   - Portions of up to 250 messages, fewer if they are long (16 MiB), come from a consumer with exactly that
//     prefetch, which gets no more because nothing is acknowledged before it is cancelled. So nothing beyond the
//     bound is taken, and a portion costs three round trips. basic.get recognises an empty queue, not a pause.
//   - Before RabbitMQ 4.3 a quorum queue counts what is put back towards its delivery limit. A message near the
//     limit goes to the queue's end as a copy, confirmed before the original is acknowledged. Over AMQP alone the
//     limit cannot be known: the broker takes the lower of the argument and a policy, and a declaration with the
//     same argument succeeds under any policy. So without the management API all that stays goes to the end as
//     copies, and a dry run or a peek, which would have to copy everything to change nothing, is refused. A
//     classic queue, which a declaration identifies, has no limit. Since 4.3 only messages of a channel that
//     ended count.
package inspect
