// Package bench compares rabbitdelay with alternatives, in one run on one broker. A case and its baseline take turns (A
// B A B), so that a busy machine slows down both. A claim is a limit for the ratio of the two. The baselines are simple
// implementations in this package that use the same bodies, connection settings and number of unconfirmed or
// unacknowledged messages.
//
// The file scenarios.go contains the table of all scenarios, and run.go runs them. A case's work is in publish.go,
// consume.go, tasks.go, steady.go (lateness; its timers are in timers.go), climb.go (the highest rate), broker.go (CPU
// time and memory) or console.go. The files client.go and servers.go open the clients and servers, print.go prints the
// Result (result.go), and options.go contains the options.
package bench
