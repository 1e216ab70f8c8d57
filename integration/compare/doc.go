// Command compare measures rabbitdelay against the tools that people would use instead: River, asynq, a sorted set in
// Redis, a polled table in PostgreSQL and the x-delayed-message plugin. Each contender does the same work in its own
// way, on servers that are started for the run and configured as users run them.
//
// The package is a separate module, so that rabbitdelay does not depend on the other tools.
//
// A contender is in the file of its name. The workloads are in schedule.go, steady.go, instant.go, restart.go and
// backlog.go, and run.go interleaves the contenders. The folder job has one job as a program for each of three tools.
package main
