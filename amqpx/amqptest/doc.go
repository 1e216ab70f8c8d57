// Package amqptest is RabbitMQ in memory, for tests of what is built on it. It
// speaks AMQP 0-9-1 as RabbitMQ does: connections and channels, confirms and
// mandatory returns, consumers and prefetch, exchanges of all types, queues with
// TTLs, length limits and delivery limits, dead letters with their x-death,
// permissions, alarms, and the broker's own refusals in its own words.
//
// A Server works inside a testing/synctest bubble: there a delay of 30 minutes
// or of a year passes at once, and every run of a test is the same.
//
//	synctest.Test(t, func(t *testing.T) {
//		srv := amqptest.NewServer(amqptest.Options{})
//		defer srv.Close()
//		client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
//		…
//	})
//
// A schedule.Store goes by that time too; docs/testing.md says what databases do in a bubble,
// and how long a day takes with each.
//
// Make the Server inside the bubble, and close it there after its clients. For
// amqp091-go alone there is Server.Connect, and Server.Listen serves a socket for
// other processes, outside bubbles.
//
// # Faults
//
// A test switches production failures on and off. Nack, Return, Refuse and
// Silence affect one exchange or queue, Deny a permission, Block and Unblock
// raise and clear alarms; Lose, Delay, CutAt and Control affect single methods;
// CutConnections, CloseConnections, RefuseConnections and RefuseLogins affect
// connections.
//
// # Expecting
//
// Expect and ExpectNone look for the message that waits for a queue, wherever the broker has
// it until its instant, and show what is there instead. RunUntilIdle lets time pass until
// nothing is left to happen.
//
// # Looking
//
// Queue, Queues, Exchanges, Bindings and Connections show the current state;
// Publishes, Calls and RoundTrips count what clients did.
//
// # Versions
//
// Options.Version selects the RabbitMQ version, from 3.10 on. Versions differ
// in delivery limits and what counts towards them, priorities of quorum queues,
// cycles of dead letters, the refusals that end the connection, and their
// texts. From 4.4 on a quorum queue holds a message until the instant of its
// header x-opt-delivery-time.
//
// # Left out
//
// Streams, clusters, policies, the management API, TLS, transactions (540),
// direct reply-to, consumer priorities across nodes, and everything about disks
// and memory except the alarm. Durable and transient objects are the same,
// because the Server is never restarted. Its faults are exact; a real broker's
// depend on chance.
//
// # Files
//
// The package puts AMQP in front of the rules in internal/rabbit. It knows connections
// and frames, and nothing of what a broker does with a message.
//
//   - server.go: Options, users, virtual hosts, the one lock; sockets
//   - pipe.go: connections in memory that never block a writer
//   - conn.go, channel.go: connections and channels, frames in their order
//   - method.go: the methods of AMQP, and the header frame of a message
//   - declare.go, publish.go, consume.go: what each method does; user.go: permissions
//   - faults.go: what a test has asked for; look.go: what it can see; expect.go: what it
//     expects
package amqptest
