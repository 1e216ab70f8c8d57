// Package bridge stands in for an exchange of the plugin rabbitmq_delayed_message_exchange on a stock broker, for
// producers that cannot change today: they go on publishing to the exchange's name with the header x-delay. It is
// a user of the client like any other, and knows no strategy.
//
//   - bridge.go: the way of a message, from its producer to the exchange for consumers
//   - delay.go: what the plugin makes of x-delay; pure
//   - topology.go: the exchanges and queues of a bridge; pure
//
// Why it is built so:
//
//   - An exchange destination has a route queue for each routing key, because the key on the way carries the
//     digits, a stock broker cannot replace it, and a dead-letter routing key is an argument of the queue. A key
//     in CC would survive, but level exchanges and consumers' topic bindings would match both keys, and the
//     consumer would get the wrong one. So what has waited comes to a queue, and the bridge publishes it with its
//     own key: no object for a key, and any strategy.
//   - x-delay is positive until the delay has begun and negative after, as the plugin leaves it. A confirm
//     precedes each acknowledgement; a kill in between repeats, under the same message id if the producer gave
//     one.
//   - Expiration counts from the due instant, as with the plugin. A message that expires in Queue because no
//     bridge was there is dead-lettered, at least once, to DueQueue. Its delay begins there, with the key, CC and
//     expiration of x-death.
//   - On the way expiration, user-id, delivery mode, timestamp, CC and x-delay are in the header
//     rabbitdelay-carried: an expiration would end the wait early, the broker compares a user-id with the login,
//     and CC would copy the message past the delay. A carried user-id is believed only if the message came
//     through an exchange of the strategies, to which foreign publishers need no right.
//   - On 3.10 messages that the plugin itself delivers have a negative x-delay in a quorum queue, and a positive
//     one in a classic queue: there they would be delayed again. So all queues are quorum queues.
//   - The delay counts from when a bridge takes the message: timestamp has whole seconds and the producer's
//     clock, and nothing else has the publish instant.
package bridge
