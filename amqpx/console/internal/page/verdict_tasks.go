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
			add(levelWarning, href, "%s, none of them in the last two hours", plural(all, "task has failed", "tasks have failed"))
		}
		return
	case e.Failed == 0:
		add(levelWarning, href, "%s in the hour before the last, and none since; %s in all", plural(e.FailedBefore, "task failed", "tasks failed"), grouped(max(all, e.FailedBefore)))
		return
	}
	level := levelWarning
	if e.Failed >= manyFailed && e.Failed*10 >= e.Done {
		level = levelBad
	}
	trend := "as many as in the hour before"
	if e.Failed != e.FailedBefore {
		trend = map[bool]string{true: "more", false: "fewer"}[e.Failed > e.FailedBefore] + " than the " + grouped(e.FailedBefore) + " of the hour before"
	}
	add(level, href, "%s in the last hour, %s; %s in all", plural(e.Failed, "task failed", "tasks failed"), trend, grouped(max(all, e.Failed)))
}

// addLateness adds how late the tasks of the last hour were, if they were.
func addLateness(o service.Overview, add addReason) {
	median := func(p service.LatenessPoint) time.Duration { return p.P50 }
	slowest := func(p service.LatenessPoint) time.Duration { return p.P99 }
	switch half, most := quantile(o.Lateness, median, 0.5), quantile(o.Lateness, slowest, 0.99); {
	case half >= late:
		level, trend := trendOf(o, median)
		if half < veryLate {
			level = levelWarning
		}
		add(level, "#lateness", "Half of the tasks of the last hour were %s late or more; %s", shown.Roughly(half), trend)
	case most >= veryLate:
		_, trend := trendOf(o, slowest)
		add(levelWarning, "#lateness", "One task in a hundred of the last hour was %s late or more, retries included; %s", shown.Roughly(most), trend)
	}
}

// trendOf compares the newest minutes with those before.
func trendOf(o service.Overview, of func(service.LatenessPoint) time.Duration) (level int, trend string) {
	from := o.At.Add(-newest)
	i, _ := slices.BinarySearchFunc(o.Lateness, from, func(p service.LatenessPoint, at time.Time) int { return p.From.Compare(at) })
	before, now := quantile(o.Lateness[:i], of, 0.5), quantile(o.Lateness[i:], of, 0.5)
	minutes := shown.Roughly(newest)
	switch {
	case i == len(o.Lateness):
		return levelBad, "none was done in the last " + minutes
	case now < late:
		return levelWarning, "those of the last " + minutes + " were on time"
	case i == 0:
		return levelBad, "none was done before the last " + minutes
	case now*10 > before*11:
		return levelBad, "it grows: " + shown.Roughly(now) + " in the last " + minutes
	case now*11 < before*10:
		return levelBad, "it falls: " + shown.Roughly(now) + " in the last " + minutes
	}
	return levelBad, "it stays so"
}

// onTime reports whether tasks were done in the last hour, and almost all of them at
// their due instants.
func onTime(points []service.LatenessPoint) bool {
	return len(points) > 0 && quantile(points, func(p service.LatenessPoint) time.Duration { return p.P99 }, 0.99) < late
}

// quantile is what a share of the tasks stayed below, where each minute's tasks count
// with one figure of it; 0 for none.
func quantile(points []service.LatenessPoint, of func(service.LatenessPoint) time.Duration, share float64) time.Duration {
	sorted := slices.SortedFunc(slices.Values(points), func(a, b service.LatenessPoint) int { return int(of(a) - of(b)) })
	var all, below int64
	for _, p := range sorted {
		all += p.Count
	}
	for _, p := range sorted {
		if below += p.Count; float64(below) >= share*float64(all) {
			return of(p)
		}
	}
	return 0
}
