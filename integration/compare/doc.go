// Command compare measures rabbitdelay against the tools that people would use instead: TTL queues that a program
// declares itself, River, asynq, a sorted set in Redis, a polled table in PostgreSQL and the x-delayed-message plugin.
// Each contender does the same work in its own way, on servers that are started for the run and configured as users run
// them.
//
// The package is a separate module, so that rabbitdelay does not depend on the other tools.
//
// rabbitdelay.go, byhand.go, river.go, asynq.go, zset.go, table.go and plugin.go contain the contenders. run.go lists
// the workloads, each of which is in a file of its name (schedule is in scheduling.go), and runs the contenders in turns.
// The folder job has one job as a program for each of three tools.
package main
