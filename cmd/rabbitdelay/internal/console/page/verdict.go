package page

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Levels of a verdict, from best to worst.
const (
	levelGood = iota
	levelWarning
	levelBad
)

// verdict is a one-line summary of the system's health, with reasons.
type verdict struct {
	Level   int
	Text    string
	Reasons []reason
}

// Class returns the level's CSS class.
func (v verdict) Class() string { return [...]string{"good", "warning", "bad"}[v.Level] }

// reason is one problem, with a link to its details.
type reason struct {
	Level  int
	Text   string
	Href   string
	Detail string // a message from another component, such as an error; it is not translated
}

// Class returns the level's CSS class.
func (r reason) Class() string { return verdict{Level: r.Level}.Class() }

// Word describes the level in one word, for users who do not see colours.
func (r reason) Word() string { return [...]string{"good", "warning", "problem"}[r.Level] }

// stale is the age above which an overview is outdated.
const stale = time.Minute

// judge derives the verdict from an overview. It is a pure function.
func judge(l *language, o service.Overview, now time.Time) verdict {
	var v verdict
	add := func(level int, href, text string, detail ...string) {
		v.Reasons = append(v.Reasons, reason{level, text, href, strings.Join(detail, " ")})
	}
	addAway(l, o, add)
	if age := now.Sub(o.At); age > stale {
		add(levelBad, "", l.text("This page is %s old, because nothing newer could be read.", shown.Roughly(age)))
	}
	for _, a := range o.Alarms {
		add(levelBad, "", l.text("The broker has raised an alarm and does not accept messages."), a)
	}
	addOverdue(l, o, add)
	addHeld(l, o, add)
	addFailures(l, o, add)
	addLateness(l, o, add)
	critical, warnings, first := int64(0), int64(0), ""
	for _, f := range o.Status.Findings {
		if f.Severity == doctor.SeverityCritical {
			critical++
			first = cmp.Or(first, f.What)
		} else {
			warnings++
		}
	}
	if critical > 0 {
		add(levelBad, "#findings", l.plural(critical, "The doctor reports %s critical finding.", "The doctor reports %s critical findings."), first)
	}
	if warnings > 0 {
		add(levelWarning, "#findings", l.plural(warnings, "The doctor reports %s warning.", "The doctor reports %s warnings."))
	}
	addPlaces(l, o, add)
	for _, u := range o.Status.Unchecked {
		if u.Area != status.AreaBroker && u.Area != doctor.AreaDatabase {
			add(levelWarning, "", l.text("Not checked: %s", l.text(string(u.Area))), "("+u.Why+")")
		}
	}
	for _, r := range v.Reasons {
		v.Level = max(v.Level, r.Level)
	}
	slices.SortStableFunc(v.Reasons, func(a, b reason) int { return b.Level - a.Level })
	v.Text = v.headline(l, together(o.History.Hour))
	return v
}

// headline returns a one-line summary of the reasons.
func (v verdict) headline(l *language, hour taskview.CompletionStats) string {
	switch v.Level {
	case levelGood:
		return l.text("No problems")
	case levelWarning:
		text := l.plural(int64(len(v.Reasons)), "%s warning", "%s warnings")
		if hour.Done > 0 && hour.Lateness(0.99) < late { // at least 99 % of the tasks were on time
			return l.text("Deliveries are on time; %s", text)
		}
		return text
	}
	bad := slices.IndexFunc(v.Reasons, func(r reason) bool { return r.Level != levelBad })
	if bad < 0 {
		bad = len(v.Reasons)
	}
	return l.plural(int64(bad), "%s problem", "%s problems")
}

// addOverdue adds reasons for overdue tasks, and for the absence of a relay.
func addOverdue(l *language, o service.Overview, add addReason) {
	t := o.Status.Tasks
	if t == nil {
		return
	}
	more := func(text string) string {
		if t.More {
			return l.text("at least %s", text)
		}
		return text
	}
	overdue := "tasks?status=pending"
	if i := slices.IndexFunc(o.Horizon, func(c service.HorizonCount) bool { return c.Name == "overdue" }); i >= 0 {
		overdue = horizon(o)[i].Href
	}
	if t.Unsent > 0 {
		add(levelBad, overdue, more(l.plural(t.Unsent, "%s task is overdue and was not sent to the broker", "%s tasks are overdue and were not sent to the broker")))
	}
	if t.Unhandled > 0 {
		add(levelBad, overdue, more(l.plural(t.Unhandled, "%s task is overdue: sent, but not handled", "%s tasks are overdue: sent, but not handled")))
	}
	if t.Relays != nil && !slices.ContainsFunc(t.Relays, func(r taskview.Relay) bool { return r.Running(o.TasksAt()) }) {
		detail := ""
		if len(t.Relays) > 0 {
			detail = status.WhoSends(t.Relays, o.TasksAt())
		}
		add(levelBad, "#connections", l.text("No relay is running, so tasks are not sent."), detail)
	}
}

// addAway adds a reason for each component that does not answer, with what still works. It adds the problem of this
// process only if all components answer, because otherwise that problem is often the same one in other words.
func addAway(l *language, o service.Overview, add addReason) {
	broker, noBroker := o.Away(status.AreaBroker)
	noBroker = noBroker && !o.Brokerless
	database, noDatabase := o.Away(doctor.AreaDatabase)
	if noBroker {
		add(levelBad, "", l.text("The broker does not answer. Nothing is sent or delivered, but tasks can still be viewed and changed."), "("+broker+")")
	}
	if noDatabase {
		add(levelBad, "", l.text("The database does not answer. Tasks are not shown, sent or handled, but messages on the broker can still be viewed and requeued."), "("+database+")")
	}
	if o.Problem != "" && !noBroker && !noDatabase {
		add(levelBad, "", l.text("This process reports a problem."), o.Problem)
	}
}

// addPlaces adds reasons for blocked connections, queues without consumers, and dead or parked messages.
func addPlaces(l *language, o service.Overview, add addReason) {
	var dead, blocked int64
	var unconsumed []string
	for _, d := range o.Status.Destinations {
		if d.Dead != nil {
			dead += d.Dead.Messages
		}
		if d.Unconsumed() && d.Waiting.Total() > 0 {
			unconsumed = append(unconsumed, shown.Line(d.Name))
		}
	}
	for _, c := range o.Status.Clients {
		blocked += int64(c.Blocked)
	}
	if blocked > 0 {
		add(levelBad, "#connections", l.plural(blocked, "The broker blocks %s connection", "The broker blocks %s connections"))
	}
	if len(unconsumed) > 0 {
		add(levelWarning, "#destinations", l.text("No consumer for %s", l.listed(unconsumed)))
	}
	if dead > 0 {
		add(levelWarning, "dead", l.plural(dead, "%s dead letter", "%s dead letters"))
	}
	if n := o.Status.Parked.Messages; n > 0 {
		add(levelWarning, "dead", l.plural(n, "%s message is parked, because no queue was bound for its destination", "%s messages are parked, because no queue was bound for their destination"))
	}
}

// Thresholds for failures and lateness.
const (
	// late is a lateness that a working relay and idle handlers never reach, and veryLate is the lateness that is a
	// problem if half of the tasks reach it, and worth a warning if 1 % do.
	late     = 10 * time.Second
	veryLate = 2 * time.Minute
	// newest is the period whose lateness is compared with the rest of the hour.
	newest = 10 * time.Minute
	// manyFailed is how many tasks must have failed in an hour before a failure for every ten done tasks is a problem
	// rather than a warning. Below that, a few bad tasks can be the cause.
	manyFailed = 10
)

type addReason = func(level int, href, text string, detail ...string)

// addFailures adds a reason if tasks have failed. The reason is more urgent if many of them failed in the last hour.
func addFailures(l *language, o service.Overview, add addReason) {
	var all int64
	if o.Status.Tasks != nil {
		for _, c := range o.Status.Tasks.Counts {
			if c.Status == schedule.StatusFailed {
				all += c.Count
			}
		}
	}
	const href = "tasks?status=failed"
	e := o.Ended
	switch {
	case e == nil || e.Failed == 0 && e.FailedBefore == 0:
		if all > 0 {
			add(levelWarning, href, l.plural(all, "%s failed task, but none in the last two hours", "%s failed tasks, but none in the last two hours"))
		}
		return
	case e.Failed == 0:
		add(levelWarning, href, l.plural(e.FailedBefore, "%s task failed in the hour before last, but none since then; %s in total", "%s tasks failed in the hour before last, but none since then; %s in total", shown.Number(max(all, e.FailedBefore))))
		return
	}
	level := levelWarning
	if e.Failed >= manyFailed && e.Failed*10 >= e.Done {
		level = levelBad
	}
	trend := l.text("as many as in the hour before")
	switch before := shown.Number(e.FailedBefore); {
	case e.Failed > e.FailedBefore:
		trend = l.text("up from %s in the hour before", before)
	case e.Failed < e.FailedBefore:
		trend = l.text("down from %s in the hour before", before)
	}
	add(level, href, l.plural(e.Failed, "%s task failed in the last hour, %s; %s in total", "%s tasks failed in the last hour, %s; %s in total", trend, shown.Number(max(all, e.Failed))))
}

// addLateness adds reasons if the tasks of the last hour were late.
func addLateness(l *language, o service.Overview, add addReason) {
	hour := together(o.History.Hour)
	switch half, most := hour.Lateness(0.5), hour.Lateness(0.99); {
	case half >= late:
		level, trend := trendOf(l, o, 0.5)
		if half < veryLate {
			level = levelWarning
		}
		add(level, "#ended", l.text("Half of the tasks in the last hour were at least %s late; %s", shown.Roughly(half), trend))
	case most >= veryLate:
		_, trend := trendOf(l, o, 0.99)
		add(levelWarning, "#ended", l.text("1 %% of the tasks in the last hour were at least %s late, including retries; %s", shown.Roughly(most), trend))
	}
}

// trendOf compares a percentile of the lateness in the newest minutes with the same percentile in the rest of the hour.
func trendOf(l *language, o service.Overview, share float64) (level int, trend string) {
	from := o.TasksAt().Add(-newest)
	i, _ := slices.BinarySearchFunc(o.History.Hour, from, func(e taskview.CompletionStats, at time.Time) int { return e.From.Compare(at) })
	sumBefore, sumNow := together(o.History.Hour[:i]), together(o.History.Hour[i:])
	before, now := sumBefore.Lateness(share), sumNow.Lateness(share)
	minutes := shown.Roughly(newest)
	switch {
	case sumNow.Done == 0:
		return levelBad, l.text("none were done in the last %s", minutes)
	case now < late:
		return levelWarning, l.text("tasks in the last %s were on time", minutes)
	case sumBefore.Done == 0:
		return levelBad, l.text("none were done before the last %s", minutes)
	case now*10 > before*11:
		return levelBad, l.text("rising: %s in the last %s", shown.Roughly(now), minutes)
	case now*11 < before*10:
		return levelBad, l.text("falling: %s in the last %s", shown.Roughly(now), minutes)
	}
	return levelBad, l.text("unchanged")
}

// together adds up the completion stats of several time spans.
func together(list []taskview.CompletionStats) (sum taskview.CompletionStats) {
	for _, e := range list {
		sum = sum.Plus(e)
	}
	return sum
}

// addHeld adds a reason for each paused destination.
func addHeld(l *language, o service.Overview, add addReason) {
	if o.Status.Tasks == nil {
		return
	}
	for _, d := range o.Status.Tasks.Held {
		if !d.Paused() {
			continue
		}
		name, since, due := shown.Line(middle(60, cmp.Or(d.Queue, d.Exchange))), l.fromNow(d.PausedAt, o.At), l.plural(d.Waiting, "%s due task is waiting", "%s due tasks are waiting")
		if d.PausedBy == "" {
			add(levelWarning, "held", l.text("Tasks for %s were paused %s; %s", name, since, due))
			continue
		}
		add(levelWarning, "held", l.text("Tasks for %s were paused %s by %s; %s", name, since, shown.Line(d.PausedBy), due))
	}
}
