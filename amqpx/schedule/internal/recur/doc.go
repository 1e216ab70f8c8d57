// Package recur creates a task for each occurrence of a recurring task ahead of time, according to the rule in a row
// and in a transaction that locks the row. It knows about timetables, occurrences and rows, but nothing about messages.
// Its caller provides the function that checks whether a task can be sent.
//
//	rule.go        the rule of a row, and its validation
//	occurrence.go  the occurrence times of a rule, and the ids of their tasks
//	planner.go     the loop in which a relay plans rows, one after the other
//	plan.go        the plan of one row
//	write.go       adding, changing, pausing, running and deleting rows
//
// The reasons for this design:
//
//   - A relay claims the row with the earliest plan_at, inserts the tasks of its next occurrences and advances plan_at,
//     in one transaction, so no leader is needed. The task's id contains the occurrence's time, so each occurrence has
//     only one task. The next task always exists in advance, so that the broker can time it.
//   - The misfire policy is applied before the first send, and also to tasks that were created before the outage.
//     Otherwise, after an outage, a relay would send tasks that the policy is meant to skip.
//   - A withdrawn task is cancelled, not deleted. If it is created again, its version must differ
//     from the version of a message that is still with the broker.
//   - A library evaluates cron expressions as if wall clocks were in UTC. Package timetable turns the
//     results into points in time by two rules, which a test compares with every minute of two years
//     in ten time zones.
package recur
