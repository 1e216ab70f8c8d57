package doctor

import (
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// checkTasks reports overdue tasks of the business database, recurring tasks that create no tasks, and tasks that a
// relay with this configuration refuses to send.
func (x *examination) checkTasks() {
	t := x.snap.Tasks
	if t == nil {
		return
	}
	if t.Unread != "" {
		x.unseenf(AreaDatabase, "recurring tasks and destinations of tasks: %s", t.Unread)
	}
	if len(t.Idle) > 0 {
		idle := texts(t.Idle, func(r IdleRecurring) string { return r.Name })
		reasons := texts(t.Idle, func(r IdleRecurring) string { return fmt.Sprintf("%q: %s", r.Name, r.Reason) })
		x.found(Finding{ID: "recurring-not-planned", Severity: SeverityCritical, Objects: idle,
			What: fmt.Sprintf("%s no tasks at present: %s.", counted(len(idle), "recurring task makes", "recurring tasks make"), list(reasons)),
			Why:  "Its occurrences do not happen until the reason is gone. Other recurring tasks go on.",
			Mend: x.run("schedules show") + " " + shellQuote(idle[0]) + "   # shows it whole; correct its row, its file or its relay, and it goes on by its misfire policy",
		})
	}
	unlisted := texts(t.Unlisted, func(u UnlistedTasks) string { return u.Destination })
	each := texts(t.Unlisted, func(u UnlistedTasks) string {
		return fmt.Sprintf("%s for %s", counted(u.Pending, "task", "tasks"), u.Destination)
	})
	x.about(unlisted, Finding{ID: "tasks-not-listed", Severity: SeverityWarning,
		What: fmt.Sprintf("Pending tasks have destinations that the file does not list: %s.", list(each)),
		Why:  "With declare: listed a relay refuses to send them when they are due. They were written by another program, or before the file changed.",
		Mend: x.run("tasks list --status pending") + "   # shows them, with --queue those of one; add their destinations to the file and apply it, or cancel them",
	})
	number := func(n int64) string {
		text := counted(n, "task is", "tasks are")
		if t.More {
			text = "At least " + text
		}
		return text
	}
	since := func(at time.Time) string { return topology.FormatDuration(max(t.Now.Sub(at), 0).Round(time.Second)) }
	if t.Unsent > 0 {
		why := "Until a relay sends it, a task is only a row: " + t.Relays + "."
		if t.LastError != "" {
			why += fmt.Sprintf(" The last error noted is %q.", t.LastError)
		}
		x.found(Finding{ID: "tasks-not-relayed", Severity: SeverityCritical,
			What: fmt.Sprintf("%s overdue and not yet sent to the broker, the oldest for %s.", number(t.Unsent), since(t.OldestUnsent)),
			Why:  why, Mend: x.run("serve") + "   # with the database of the file, or --db; or start the service that runs Tasks.Run, again where it is hung",
		})
	}
	if t.Unhandled > 0 {
		x.found(Finding{ID: "tasks-not-handled", Severity: SeverityWarning,
			What: fmt.Sprintf("%s overdue and still pending although they were sent to the broker, the oldest for %s.", number(t.Unhandled), since(t.OldestUnhandled)),
			Why:  "Their messages wait in their queue, or their handlers fail; the relay sends them again from time to time.",
			Mend: x.run("tasks list --status pending") + "   # shows them, with the last error of their handlers; start or mend the service that handles them",
		})
	}
}
