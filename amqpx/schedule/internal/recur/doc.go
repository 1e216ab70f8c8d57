// Package recur makes the tasks of recurring ones: by the rule of a row, in the row's own
// transaction, ahead of time. It knows timetables, occurrences and rows; it knows no
// message, and what can be sent it is told.
//
//	rule.go        what a row says, and what is wrong with it
//	occurrence.go  the instants of a rule, and the ids of their tasks
//	planner.go     the rows that a relay plans, one after the other
//	plan.go        the plan of one row
//	write.go       adding, changing, pausing, firing and deleting rows
package recur
