// Package amqptest is RabbitMQ in memory, for tests of what is built on it. It
// speaks AMQP 0-9-1 as RabbitMQ does: connections and channels, confirms and
// mandatory returns, consumers and prefetch, exchanges of all types, queues with
// TTLs, length limits and delivery limits, dead letters with their x-death,
// permissions, alarms, and the broker's own refusals in its own words.
//
// A Server works inside a testing/synctest bubble: there a delay of 30 minutes,
// and one of a year, passes at once, and every test takes the same way each time.
//
//	synctest.Test(t, func(t *testing.T) {
//		srv := amqptest.NewServer(amqptest.Options{})
//		defer srv.Close()
//		client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
//		…
//	})
//
// Make the Server inside the bubble, and close it there after its clients. For
// amqp091-go alone there is Server.Connect, and Server.Listen serves a socket for
// other processes, outside bubbles.
//
// # Faults
//
// What goes wrong in production happens here when the test says so, and until it
// takes it back: Nack, Return, Refuse and Silence are about one exchange or
// queue; Deny is about a permission; Block and Unblock are the alarms; Lose,
// Delay, CutAt and Control are about single methods; CutConnections,
// CloseConnections, RefuseConnections and RefuseLogins are about connections.
//
// # Looking
//
// Queue, Queues, Exchanges, Bindings and Connections say how things are now;
// Publishes, Calls and RoundTrips count what clients have done.
//
// # Versions
//
// Options.Version chooses whose behaviour is wanted, from 3.10 on: delivery
// limits, what counts towards them, priorities of quorum queues, cycles of dead
// letters, which refusals end the connection and their texts differ.
//
// # Left out
//
// Streams, clusters, policies, the management API, TLS, transactions (540),
// direct reply-to, consumer priorities across nodes, and everything about disks
// and memory but the alarm. Durable and transient are the same: the Server is
// never restarted. Faults are exact where a broker's are a matter of chance.
package amqptest
