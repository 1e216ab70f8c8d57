// Package declare makes sure that the broker has what a client needs: the strategy's topology and the destinations with
// their bindings. It also tests whether the broker delays messages until a given time, and decides what the broker's
// errors mean for a destination and for how long.
//
// Everything that it needs comes from Config. It knows nothing about messages or the client.
//
//   - declarer.go: a Declarer, which owns everything below and declares the strategy's topology, including again after
//     something was deleted
//   - destinations.go: which destinations exist and are bound, with one attempt at a time for each
//   - destination.go: checks one destination, and creates what is missing
//   - own.go: additional bindings, for brokers that confirm a binding before they route by it
//   - prove.go: whether the broker delays until a given time
//   - conns.go: the connections on which declarations are made
//   - judge.go: what an error means
//
// Race with a quorum queue that is being created: the broker shows the queue to other clients once its name is
// recorded, but the queue has no process and no leader until milliseconds later, or over a second later on a busy
// machine. Until then it looks like an empty queue. If a delay queue forwards a message to it, the message is refused,
// and the delay queue tries again only after dead_letter_worker_publisher_confirm_timeout, which is three minutes, and
// all messages behind it wait as well. Before RabbitMQ 4.3 the queue also starts with its oldest state machine, which
// does not support a TTL. A message that arrives before the queue has its settings does not get the TTL and would stay
// in a route queue forever, with all other messages behind it. With nine clients on brokers with one processor, and 270
// messages for each of eight new destinations, one of these two problems occurred in five of 54 runs. For this reason
// the queue's name is locked for two round trips, or while the queue is created. For the same reason, a client that
// finds messages in a route queue, or that has created the queue, rejects them, so that they are dead-lettered as if
// they had expired.
//
// Rules for errors and locks:
//
//   - An attempt to declare a destination continues even if its callers stop waiting, and the error of a failed attempt
//     is returned to all callers for up to a second. Permanent errors are 405, 403 for 2 s, a queue name or limit that
//     the broker refuses, a missing exchange, and three consecutive connections that the broker closed during the
//     attempt. A 541 is tried again on a separate connection, so that it does not affect other declarations.
//   - A client proceeds without a lock after 5 s, if it lacks the permission for the lock, or with DeclareNothing. The
//     race remains for queues that other programs create at the same moment.
package declare
