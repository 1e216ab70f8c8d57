// Package bench measures rabbitdelay beside what people would use instead, in one run
// on one broker. What is measured and its baseline take turns (A B A B), so that a busy
// machine slows both, and a claim is the ratio of the two. The baselines are plain
// programs in this package, with the same bodies, connection settings and number of
// messages in flight.
//
// scenarios.go is the table of all scenarios, which run.go runs. A case's work is in
// publish.go, consume.go, tasks.go, steady.go (lateness; its timers in timers.go), climb.go
// (the highest rate), broker.go (processor time, memory) or console.go. client.go and
// servers.go open what it works on, and print.go shows the Result
// (result.go); options.go has what one may choose.
package bench
