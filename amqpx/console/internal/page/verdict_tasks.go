package page

import (
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// What a verdict says of failures and lateness.
const (
	// late is a lateness that a working relay and idle handlers never reach, and
	// veryLate one at which tasks are called overdue.
	late     = 10 * time.Second
	veryLate = 2 * time.Minute
	// newest are the minutes whose lateness is compared with that of the hour.
	newest = 10 * time.Minute
	// Of so many tasks that failed in an hour, a tenth of all that came to an end is
	// more than some bad ones.
	manyFailed = 10
)

type addReason = func(level int, href, format string, args ...any)

// addFailures adds the tasks that have failed, the more urgent the more of them did so
// in the last hour.
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

// addLateness adds how late the tasks of the last hour were, if they were.
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

// trendOf compares the newest minutes with those before, by the lateness of a share.
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

// onTime reports whether tasks were done in the last hour, and almost all of them at
// their due instants.
func onTime(o service.Overview) bool {
	hour := together(o.History.Hour)
	return hour.Done > 0 && hour.Lateness(0.99) < late
}

// together adds up spans.
func together(list []schedule.Ends) (sum schedule.Ends) {
	for _, e := range list {
		sum = sum.Plus(e)
	}
	return sum
}
