// Package bridge replaces an exchange of the plugin rabbitmq_delayed_message_exchange on a broker without plugins. It
// is for producers that cannot be changed yet: they continue to publish to the same exchange name with the header
// x-delay. A bridge uses the client like any application and does not depend on a strategy.
//
//   - bridge.go: handles messages, from their producer to the exchange for consumers
//   - delay.go: the plugin's interpretation of x-delay; without I/O
//   - topology.go: the exchanges and queues of a bridge; without I/O
//
// Reasons for the design:
//
//   - An exchange destination needs a route queue for each routing key. While a message waits, its routing key contains
//     the digits of the delay. A broker without plugins cannot replace the key except by a queue's dead-letter routing
//     key. A key in CC would survive, but level exchanges and consumers' topic bindings would match both keys, and the
//     consumer would get the wrong one. So due messages are sent to one queue, and the bridge publishes each with its
//     original key. This needs no object per key, and works with any strategy.
//   - x-delay is positive until the delay has begun and negative after that, as the plugin leaves it. Each message is
//     acknowledged after the confirm. A kill in between repeats the message, with the same message id if the producer
//     set one.
//   - An expiration begins at the due time, as with the plugin. A message that expires in Queue because no bridge was
//     running is dead-lettered, at least once, to DueQueue. Its delay begins there, with the key, CC and expiration of
//     x-death.
//   - While a message waits, its expiration, user-id, delivery mode, timestamp, CC and x-delay are in the header
//     rabbitdelay-carried. An expiration would end the wait early, the broker compares a user-id with the connection's
//     user, and CC would deliver copies without the delay. A carried user-id is trusted only if the message arrived
//     through an exchange of the strategies, to which other publishers need no permission.
//   - On 3.10, messages that the plugin itself delivers have a negative x-delay in a quorum queue but a positive one in
//     a classic queue, where they would be delayed again. So all queues are quorum queues.
//   - The delay begins when a bridge receives the message. The only record of the publishing time is the timestamp,
//     which has whole seconds and depends on the producer's clock.
package bridge
