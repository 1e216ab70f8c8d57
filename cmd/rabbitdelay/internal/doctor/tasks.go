package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
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
		x.uncheckedf(AreaDatabase, "recurring tasks and destinations of tasks: %s", t.Unread)
	}
	if t.ReadOnly != "" {
		x.found(Finding{ID: "database-read-only", Severity: SeverityCritical,
			What: "The database is read-only.",
			Why:  "Nothing can be scheduled, sent or handled. It is unknown whether relays are running, because they could not record that. The database reports: " + t.ReadOnly + ".",
			Fix:  "# use the primary's address in the database URL of all programs; if the URL lists several hosts, add target_session_attrs=read-write (PostgreSQL)",
		})
	}
	if t.Skew != 0 {
		x.found(Finding{ID: "database-clock", Severity: SeverityWarning,
			What: fmt.Sprintf("The database's clock is %s this machine's.", Clock{Low: t.Skew, High: t.Skew}.ahead()),
			Why: "Relays and handlers use the database's clock, whereas a program that writes tasks computes their due times with its own. " +
				"If this machine writes tasks, they are early or late by the difference. If the database's clock is wrong, all tasks are.",
			Fix: "timedatectl set-ntp true   # or chronyc makestep, on the machine whose clock is wrong",
		})
	}
	if len(t.Idle) > 0 {
		idle := texts(t.Idle, func(r IdleRecurring) string { return r.Name })
		reasons := texts(t.Idle, func(r IdleRecurring) string { return fmt.Sprintf("%q: %s", r.Name, r.Reason) })
		x.found(Finding{ID: "recurring-not-planned", Severity: SeverityCritical, Objects: idle,
			What: fmt.Sprintf("%s no tasks at present: %s.", shown.Count(len(idle), "recurring task creates", "recurring tasks create"), list(reasons)),
			Why:  "Their occurrences are not scheduled until the cause is fixed. Other recurring tasks are not affected.",
			Fix:  x.run("schedules show") + " " + shellQuote(idle[0]) + "   # shows the whole recurring task; after you have corrected its row, its file or its relay, it continues according to its misfire policy",
		})
	}
	unlisted := texts(t.Unlisted, func(u UnlistedTasks) string { return u.Destination })
	each := texts(t.Unlisted, func(u UnlistedTasks) string {
		return fmt.Sprintf("%s for %s", shown.Count(u.Pending, "task", "tasks"), u.Destination)
	})
	x.about(unlisted, Finding{ID: "tasks-not-listed", Severity: SeverityWarning,
		What: fmt.Sprintf("Pending tasks have destinations that the file does not list: %s.", list(each)),
		Why:  "With declare: listed, a relay refuses to send them when they are due. Another program wrote them, or the file has changed since.",
		Fix:  x.run("tasks list --status pending") + "   # shows them, and with --queue only the tasks of one destination; add the destinations to the file and run apply, or cancel the tasks",
	})
	x.checkAhead()
	number := func(n int64) string {
		text := shown.Count(n, "task is", "tasks are")
		if t.More {
			text = "At least " + text
		}
		return text
	}
	since := func(at time.Time) string { return topology.FormatDuration(max(t.Now.Sub(at), 0).Round(time.Second)) }
	if t.Unsent > 0 {
		why := "Until a relay sends a task, it is only a row in the database: " + t.Relays + "."
		if t.LastError != "" {
			why += fmt.Sprintf(" The last recorded error is %q.", t.LastError)
		}
		x.found(Finding{ID: "tasks-not-relayed", Severity: SeverityCritical,
			What: fmt.Sprintf("%s overdue and not yet sent to the broker, the oldest for %s.", number(t.Unsent), since(t.OldestUnsent)),
			Why:  why, Fix: x.run("serve") + "   # with the database of the file, or --db; or start the service that runs Tasks.Run, or restart it if it hangs",
		})
	}
	if t.Unhandled > 0 {
		x.found(Finding{ID: "tasks-not-handled", Severity: SeverityWarning,
			What: fmt.Sprintf("%s overdue and still pending although they were sent to the broker, the oldest for %s.", number(t.Unhandled), since(t.OldestUnhandled)),
			Why:  "Their messages wait in their queues, or their handlers fail. The relay sends them again from time to time.",
			Fix:  x.run("tasks list --status pending") + "   # shows them, with the last error of their handlers; start or fix the service that handles them",
		})
	}
}

// Missing returns how many of the tasks in Tasks.Ahead have certainly lost their messages, which is the number of
// messages that the virtual host lacks. More tasks may have lost their messages, because other messages look the same
// in a count. If the number is unknown although messages seem to be missing, the result is 0 with the reason.
func Missing(cfg Config, snap Snapshot) (n int64, unknown string) {
	if snap.Tasks == nil || snap.Tasks.Ahead == 0 {
		return 0, ""
	}
	there, unseen := Messages(cfg, snap.Live)
	there = max(there, snap.Tasks.Recounted)
	n = snap.Tasks.Ahead - there
	switch {
	case n <= 0:
		return 0, ""
	case !snap.Live.BindingsKnown:
		return 0, fmt.Sprintf("only %s could be seen, because seeing all of them needs the management API", shown.Count(there, "message", "messages"))
	case len(unseen) > 0:
		return 0, fmt.Sprintf("%s can be seen, and the number of messages in these queues is unknown: %s", shown.Count(there, "message", "messages"), list(unseen))
	}
	return n, ""
}

// Messages counts the messages of a virtual host that may belong to tasks that are not due yet. It excludes dead
// letters, but includes the messages of all other queues, because a consumer may hold a message before it is due. The
// queues in unseen may contain more messages.
func Messages(cfg Config, live plan.State) (n int64, unseen []string) {
	cfg = cfg.WithDefaults()
	dead := map[string]bool{}
	for _, q := range live.Kept(cfg.Want) {
		dead[q.Name] = q.Name != topology.ParkedQueue(cfg.Prefix)
	}
	wanted := map[string]bool{}
	for _, d := range cfg.Want.Destinations {
		wanted[d.TargetQueue(cfg.Prefix)] = true
	}
	for name, q := range live.Queues {
		if dead[name] {
			continue
		}
		n += q.Messages
		if _, delays := naming.DelaysOf(cfg.Prefix, name); q.Partial() && (delays || wanted[name] || naming.RouteQueue(cfg.Prefix, name)) {
			unseen = append(unseen, name)
		}
	}
	for name, e := range live.Exchanges {
		n += e.Held
		if e.Kind == argument.DelayedExchange && !e.HeldKnown {
			unseen = append(unseen, name)
		}
	}
	slices.Sort(unseen)
	return n, unseen
}

// Again describes when tasks that have lost their messages are sent again.
func (t Tasks) Again() string {
	from, to := t.ResendFrom.UTC().Format(time.RFC3339), t.ResendTo.UTC().Format(time.RFC3339)
	switch {
	case from == to:
		return "at " + from
	case t.AheadMore:
		return "from " + from + " on"
	}
	return "from " + from + " to " + to
}

// checkAhead reports tasks that were sent but no longer have a message on the broker.
func (x *examination) checkAhead() {
	t := x.snap.Tasks
	missing, unknown := Missing(x.cfg, x.snap)
	if unknown != "" {
		x.uncheckedf(AreaMessages, "%s not due yet and marked as sent; it is unknown whether each still has a message: %s", shown.Count(t.Ahead, "task is", "tasks are"), unknown)
	}
	if missing == 0 {
		return
	}
	of := "are marked as sent and have no message on the broker any more"
	if t.Ahead > missing || t.AheadMore {
		of = "that are marked as sent have no message on the broker any more"
	}
	x.found(Finding{ID: "tasks-without-message", Severity: SeverityCritical,
		What: fmt.Sprintf("At least %s %s.", shown.Count(missing, "task", "tasks"), of),
		Why: "The virtual host or the queues with their messages were deleted or purged, or the relay sends to another broker. " +
			"The relay sends tasks again when they are overdue and nothing shows that their messages still exist, which is " + t.Again() + ", so they will be at least that late.",
		Fix: x.run("tasks reschedule --all --by 1ms") + "   # sends all pending tasks again, due a millisecond later; any messages that still exist then have no effect",
	})
}
