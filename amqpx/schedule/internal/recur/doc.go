// Package recur makes the tasks of recurring ones: by the rule of a row, in the row's own
// transaction, ahead of time. It knows timetables, occurrences and rows; it knows no
// message, and what can be sent it is told.
//
//	rule.go        what a row says, and what is wrong with it
//	occurrence.go  the instants of a rule, and the ids of their tasks
//	planner.go     the rows that a relay plans, one after the other
//	plan.go        the plan of one row
//	write.go       adding, changing, pausing, firing and deleting rows
//
// Why it is built so:
//
//   - A relay takes the row with the earliest plan_at, inserts the tasks of its next occurrences
//     and moves plan_at, in one transaction; there is no leader. A task's id is its occurrence, so
//     it happens once. One is always ahead, so the broker can time it.
//   - The misfire policy comes before the first send and counts what was made before the outage: a
//     returning relay would first send what it is to leave out.
//   - A withdrawn task is cancelled, not deleted: if it comes back, its version must differ from
//     that of a message still with the broker.
//   - A library reads cron expressions as if wall clocks were UTC; timetable makes instants of
//     them by two rules, which a test compares with every minute of two years in ten zones.
package recur
