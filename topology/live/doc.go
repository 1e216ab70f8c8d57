// Package live compares a topology with the objects on a broker, and declares it there. Use it in a program that
// prepares a broker, such as a bootstrapper or a test. A service needs only amqpx, whose client declares what it uses.
//
// A Broker plans and applies (live.go). Management is the broker's management API, which shows more than AMQP does
// (management.go). ProbePlugin and ProbeInstants test whether a broker can delay messages by itself (probe.go).
package live
