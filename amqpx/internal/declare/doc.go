// Package declare makes sure that what a client needs is on the broker: the strategy's
// topology, destinations with their bindings, the proof that the broker delays. It decides
// what the broker's errors mean for a destination, and for how long.
//
// It is given what it needs, in Config, and knows neither messages nor the client.
//
//   - declarer.go: a Declarer, which has all of the below, and declares the strategy's topology, again
//     where something was deleted
//   - destinations.go: which destinations exist and are bound, one try at a time for each
//   - destination.go: looks for one destination, and creates what is missing of it
//   - own.go: second bindings, where a broker answers before it routes
//   - prove.go: whether the broker delays by an instant
//   - conns.go: the connections on which all that happens
//   - judge.go: what an error means
//
// A quorum queue that is being created: the broker shows it to others once its name is written
// down, before it has a process and a leader, which takes milliseconds, or over a second on a
// busy machine. It looks like an empty queue meanwhile. A delay queue that passes a message on to
// it is refused, and tries again only after dead_letter_worker_publisher_confirm_timeout, three
// minutes, with all behind it waiting. Before RabbitMQ 4.3 the queue also starts with its oldest
// state machine, which knows no TTL: a message that comes before its settings has none, and would
// stay in a route queue for ever, with all others behind it. On brokers with one processor for
// nine clients, 270 messages for each of eight new destinations met the one or the other in five
// of 54 runs. Hence the lock of the queue's name, which is held for two round trips or during the
// creation, and hence whoever finds messages in a route queue, or has created it, rejects them,
// which sends them where expiring would have.
//
// What follows from errors and locks:
//
//   - A try for a destination ends by itself, not with its callers, and a failed one's error is
//     everybody's answer for up to a second. Permanent are 405, 403 for 2 s, a queue name or limit
//     that the broker refuses, a missing exchange, and three connections in a row that ended over
//     it. A 541 is tried again on a connection of its own, so that it takes no others along.
//   - A client goes on without a lock after 5 s, without the right to it, or with DeclareNothing.
//     Queues that other programs create at that moment remain a risk.
package declare
