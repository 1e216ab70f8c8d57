package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
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
	Level int
	Text  string
	Href  string
}

// Class returns the level's CSS class.
func (r reason) Class() string { return verdict{Level: r.Level}.Class() }

// Word returns the level in a word, for users who do not see colors.
func (r reason) Word() string { return [...]string{"good", "look", "wrong"}[r.Level] }

// stale is the age above which an overview is outdated.
const stale = time.Minute

// judge derives the verdict from an overview. It is a pure function.
func judge(o service.Overview, now time.Time) verdict {
	var v verdict
	add := func(level int, href, format string, args ...any) {
		v.Reasons = append(v.Reasons, reason{level, fmt.Sprintf(format, args...), href})
	}
	addAway(o, add)
	if age := now.Sub(o.At); age > stale {
		add(levelBad, "", "What you see is %s old: nothing newer could be read.", shown.Roughly(age))
	}
	for _, a := range o.Alarms {
		add(levelBad, "", "The broker has raised an alarm and takes no messages: %s", a)
	}
	s := o.Status
	if t := s.Tasks; t != nil {
		more := ""
		if t.More {
			more = "at least "
		}
		overdue := "tasks?status=pending"
		if i := slices.IndexFunc(o.Horizon, func(c service.HorizonCount) bool { return c.Name == "overdue" }); i >= 0 {
			overdue = horizon(o)[i].Href
		}
		if t.Unsent > 0 {
			add(levelBad, overdue, "%s%s overdue and not sent to the broker", more, shown.Count(t.Unsent, "task is", "tasks are"))
		}
		if t.Unhandled > 0 {
			add(levelBad, overdue, "%s%s overdue: sent, and not handled", more, shown.Count(t.Unhandled, "task is", "tasks are"))
		}
		if t.Relays != nil && !slices.ContainsFunc(t.Relays, func(r schedule.Relay) bool { return r.Running(o.At) }) {
			add(levelBad, "#connections", "No relay runs, so tasks are not sent: %s", schedule.WhoSends(t.Relays, o.At))
		}
	}
	addHeld(o, add)
	addFailures(o, add)
	addLateness(o, add)
	critical, warnings := 0, 0
	for _, f := range s.Findings {
		if f.Severity == doctor.SeverityCritical {
			critical++
		} else {
			warnings++
		}
	}
	if critical > 0 {
		add(levelBad, "#findings", "The doctor has %s", shown.Count(critical, "critical finding", "critical findings"))
	}
	if warnings > 0 {
		add(levelWarning, "#findings", "The doctor has %s", shown.Count(warnings, "warning", "warnings"))
	}
	addPlaces(o, add)
	for _, u := range s.Unseen {
		if u.Area != status.AreaBroker && u.Area != doctor.AreaDatabase {
			add(levelWarning, "", "Not seen: %s (%s)", u.Area, u.Why)
		}
	}
	for _, r := range v.Reasons {
		v.Level = max(v.Level, r.Level)
	}
	slices.SortStableFunc(v.Reasons, func(a, b reason) int { return b.Level - a.Level })
	switch v.Level {
	case levelGood:
		v.Text = "All is well"
	case levelWarning:
		v.Text = shown.Count(len(v.Reasons), "thing needs a look", "things need a look")
		if hour := together(o.History.Hour); hour.Done > 0 && hour.Lateness(0.99) < late { // at least 99 %
			v.Text = "Deliveries are on time; " + v.Text
		}
	case levelBad:
		bad := slices.IndexFunc(v.Reasons, func(r reason) bool { return r.Level != levelBad })
		if bad < 0 {
			bad = len(v.Reasons)
		}
		v.Text = shown.Count(bad, "thing is wrong", "things are wrong")
	}
	return v
}

// addAway adds the components that do not answer, and what still works. If all of them answer, it adds the problem of
// the process, which would otherwise often repeat the same cause in other words.
func addAway(o service.Overview, add addReason) {
	broker, noBroker := o.Away(status.AreaBroker)
	noBroker = noBroker && !o.Brokerless
	database, noDatabase := o.Away(doctor.AreaDatabase)
	if noBroker {
		add(levelBad, "", "The broker does not answer: nothing is sent or delivered; tasks can be seen and changed (%s)", broker)
	}
	if noDatabase {
		add(levelBad, "", "The database does not answer: tasks are not seen, sent or handled; what the broker has can be seen and requeued (%s)", database)
	}
	if o.Problem != "" && !noBroker && !noDatabase {
		add(levelBad, "", "%s", o.Problem)
	}
}

// addPlaces adds queues without consumers, and dead and parked messages.
func addPlaces(o service.Overview, add addReason) {
	var dead int64
	var unconsumed []string
	blocked := 0
	for _, d := range o.Status.Destinations {
		if d.Dead != nil {
			dead += d.Dead.Messages
		}
		if d.Unconsumed() && d.Waiting.Total() > 0 {
			unconsumed = append(unconsumed, shown.Line(d.Name))
		}
	}
	for _, c := range o.Status.Clients {
		blocked += c.Blocked
	}
	if blocked > 0 {
		add(levelBad, "#connections", "The broker blocks %s", shown.Count(blocked, "connection", "connections"))
	}
	if len(unconsumed) > 0 {
		add(levelWarning, "#destinations", "No consumer takes from %s", listed(unconsumed))
	}
	if dead > 0 {
		add(levelWarning, "dead", "%s", shown.Count(dead, "message has", "messages have")+" died")
	}
	if n := o.Status.Parked.Messages; n > 0 {
		add(levelWarning, "dead", "%s parked: nothing was bound for their destination", shown.Count(n, "message is", "messages are"))
	}
}

// listed joins the first few names.
func listed(names []string) string {
	const show = 3
	if len(names) > show {
		return strings.Join(names[:show], ", ") + fmt.Sprintf(" and %d more", len(names)-show)
	}
	return strings.Join(names, ", ")
}

// Thresholds for failures and lateness.
const (
	// late is a lateness that a working relay and idle handlers never reach, and veryLate is the lateness above which
	// tasks are considered overdue.
	late     = 10 * time.Second
	veryLate = 2 * time.Minute
	// newest is the period whose lateness is compared with the rest of the hour.
	newest = 10 * time.Minute
	// manyFailed is the number of failed tasks in an hour from which a failure rate of a tenth is more than a few bad
	// tasks.
	manyFailed = 10
)

type addReason = func(level int, href, format string, args ...any)

// addFailures adds the failed tasks. The more of them failed in the last hour, the more urgent the reason is.
func addFailures(o service.Overview, add addReason) {
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
			add(levelWarning, href, "%s, none of them in the last two hours", shown.Count(all, "task has failed", "tasks have failed"))
		}
		return
	case e.Failed == 0:
		add(levelWarning, href, "%s in the hour before the last, and none since; %s in all", shown.Count(e.FailedBefore, "task failed", "tasks failed"), shown.Number(max(all, e.FailedBefore)))
		return
	}
	level := levelWarning
	if e.Failed >= manyFailed && e.Failed*10 >= e.Done {
		level = levelBad
	}
	trend := "as many as in the hour before"
	if e.Failed != e.FailedBefore {
		trend = map[bool]string{true: "more", false: "fewer"}[e.Failed > e.FailedBefore] + " than the " + shown.Number(e.FailedBefore) + " of the hour before"
	}
	add(level, href, "%s in the last hour, %s; %s in all", shown.Count(e.Failed, "task failed", "tasks failed"), trend, shown.Number(max(all, e.Failed)))
}

// addLateness adds the lateness of the last hour's tasks if they were late.
func addLateness(o service.Overview, add addReason) {
	hour := together(o.History.Hour)
	switch half, most := hour.Lateness(0.5), hour.Lateness(0.99); {
	case half >= late:
		level, trend := trendOf(o, 0.5)
		if half < veryLate {
			level = levelWarning
		}
		add(level, "#ended", "Half of the tasks of the last hour were about %s late or more; %s", shown.Roughly(half), trend)
	case most >= veryLate:
		_, trend := trendOf(o, 0.99)
		add(levelWarning, "#ended", "One task in a hundred of the last hour was about %s late or more, retries included; %s", shown.Roughly(most), trend)
	}
}

// trendOf compares a percentile of the lateness in the newest minutes with that of the rest of the hour.
func trendOf(o service.Overview, share float64) (level int, trend string) {
	from := o.At.Add(-newest)
	i, _ := slices.BinarySearchFunc(o.History.Hour, from, func(e schedule.Ends, at time.Time) int { return e.From.Compare(at) })
	sumBefore, sumNow := together(o.History.Hour[:i]), together(o.History.Hour[i:])
	before, now := sumBefore.Lateness(share), sumNow.Lateness(share)
	minutes := shown.Roughly(newest)
	switch {
	case sumNow.Done == 0:
		return levelBad, "none was done in the last " + minutes
	case now < late:
		return levelWarning, "those of the last " + minutes + " were on time"
	case sumBefore.Done == 0:
		return levelBad, "none was done before the last " + minutes
	case now*10 > before*11:
		return levelBad, "it is growing: " + shown.Roughly(now) + " in the last " + minutes
	case now*11 < before*10:
		return levelBad, "it is falling: " + shown.Roughly(now) + " in the last " + minutes
	}
	return levelBad, "it is not changing"
}

// together adds up spans.
func together(list []schedule.Ends) (sum schedule.Ends) {
	for _, e := range list {
		sum = sum.Plus(e)
	}
	return sum
}

// addHeld adds the destinations that are paused.
func addHeld(o service.Overview, add addReason) {
	if o.Status.Tasks == nil {
		return
	}
	for _, d := range o.Status.Tasks.Held {
		if d.Paused() {
			add(levelWarning, "held", "Tasks for %s are paused since %s%s; %s", shown.Line(shown.Shorten(d.Name(), 60)), shown.Instant(d.PausedAt), by(d.PausedBy), shown.Count(d.Waiting, "is due", "are due"))
		}
	}
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + shown.Line(who)
}
