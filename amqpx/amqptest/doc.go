// Package amqptest provides an in-memory RabbitMQ for tests. It speaks AMQP 0-9-1 and behaves like RabbitMQ. It
// supports connections and channels, confirms and mandatory returns, consumers and prefetch, exchanges of all types,
// queues with TTLs, length limits and delivery limits, dead-lettering with x-death headers, permissions, alarms, and
// the broker's errors with their original texts.
//
// A Server works inside a testing/synctest bubble, where a delay of 30 minutes or of a year takes no real time and
// every run of a test behaves in the same way.
//
//	synctest.Test(t, func(t *testing.T) {
//		srv := amqptest.NewServer(amqptest.Options{})
//		defer srv.Close()
//		client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
//		…
//	})
//
// A schedule.Store in the bubble uses the same fake time. See docs/testing.md for how databases behave in a bubble and
// how long a simulated day takes with each.
//
// Create the Server inside the bubble, and close it there after its clients. Programs that use only amqp091-go can call
// Server.Connect. Outside bubbles, Server.Listen accepts connections from other processes on a socket.
//
// # Faults
//
// A test can inject production failures and undo them. Nack, Return, Refuse and Silence affect one exchange or queue,
// and Deny affects a permission. Block and Unblock raise and clear alarms. Lose, Delay, CutAt and Control affect single
// methods. CutConnections, CloseConnections, RefuseConnections and RefuseLogins affect connections.
//
// # Expectations
//
// Expect and ExpectNone look for a message that is in a queue or will be delivered to it, wherever the broker keeps the
// message until it is due. If they fail, they show the messages that were found instead. RunUntilIdle lets time pass
// until no event is pending.
//
// # Inspection
//
// Queue, Queues, Exchanges, Bindings and Connections show the current state. Publishes and Calls count client
// operations.
//
// # Versions
//
// Options.Version selects the RabbitMQ version, from 3.10 on. Versions differ in delivery limits, in which deliveries
// count towards them, in priorities of quorum queues, in dead-letter cycles, in which errors close the connection, and
// in error texts. From 4.4 on, a quorum queue holds a message until the time in its header x-opt-delivery-time.
//
// # Limitations
//
// The server does not support streams, clusters, policies, the management API, TLS, transactions (540), direct
// reply-to, consumer priorities across nodes, or anything related to disks and memory except the alarm. It treats
// durable and transient objects alike, because a Server is never restarted. Its faults are deterministic, while a real
// broker's faults depend on chance.
package amqptest

// Files, for contributors to this package:
//
// The package implements the AMQP protocol on top of the broker rules in internal/rabbit. It handles connections and
// frames, while internal/rabbit decides what happens to a message.
//
//   - server.go: Options, users, virtual hosts, the server's lock, and sockets
//   - pipe.go: in-memory connections that never block a writer
//   - conn.go, channel.go: connections and channels, and the order of frames
//   - method.go: the AMQP methods, and the header frame of a message
//   - declare.go, publish.go, consume.go: the implementation of each method
//   - user.go: permissions
//   - faults.go: the faults that a test has injected
//   - look.go: inspection
//   - expect.go: expectations
