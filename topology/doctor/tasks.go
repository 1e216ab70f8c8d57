package doctor

import (
	"fmt"
	"time"
)

// checkTasks reports tasks of the business database that should have happened.
func (x *examination) checkTasks() {
	t := x.snap.Tasks
	if t == nil {
		return
	}
	number := func(n int64) string {
		text := counted(n, "task is", "tasks are")
		if t.More {
			text = "At least " + text
		}
		return text
	}
	since := func(at time.Time) time.Duration { return max(t.Now.Sub(at), 0).Round(time.Second) }
	if t.Unsent > 0 {
		why := "Until a relay sends it, a task is only a row: " + t.Relays + "."
		if t.LastError != "" {
			why += fmt.Sprintf(" The last error noted is %q.", t.LastError)
		}
		x.found(Finding{
			ID: "tasks-not-relayed", Severity: SeverityCritical,
			What: fmt.Sprintf("%s overdue and not yet sent to the broker, the oldest for %v.", number(t.Unsent), since(t.OldestUnsent)),
			Why:  why,
			Mend: "rabbitdelay serve" + x.fileFlag() + "   # with the database of the file, or --db; or start the service that runs Tasks.Run, again where it is hung",
		})
	}
	if t.Unhandled > 0 {
		x.found(Finding{
			ID: "tasks-not-handled", Severity: SeverityWarning,
			What: fmt.Sprintf("%s overdue and still pending although they were sent to the broker, the oldest for %v.", number(t.Unhandled), since(t.OldestUnhandled)),
			Why:  "Their messages wait in their queue, or their handlers fail; the relay sends them again from time to time.",
			Mend: "rabbitdelay tasks list --status pending" + x.fileFlag() + "   # shows them, with the last error of their handlers; start or mend the service that handles them",
		})
	}
}
