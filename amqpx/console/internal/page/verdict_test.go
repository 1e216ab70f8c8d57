package page

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
)

// minute is one in which 99 tasks were so late, and one twice as late.
func minute(from time.Time, late, most time.Duration) schedule.Ends {
	e := schedule.Ends{From: from, To: from.Add(time.Minute), Done: 100, Late: make([]int64, 100)}
	for _, x := range []struct {
		late time.Duration
		n    int64
	}{{late, 98}, {most, 2}} {
		class := 0
		for i := range e.Late {
			one := schedule.Ends{Done: 1, Late: make([]int64, 100)}
			one.Late[i] = 1
			if one.Lateness(1) >= x.late {
				class = i
				break
			}
		}
		e.Late[class] += x.n
	}
	return e
}

// hour is a lateness of so much in each of the last minutes, from the newest back.
func hour(late ...time.Duration) []schedule.Ends {
	var list []schedule.Ends
	for i, d := range late {
		list = append([]schedule.Ends{minute(noon.Add(-time.Duration(i)*60/time.Duration(len(late))*time.Minute), d, 2*d)}, list...)
	}
	return list
}

// The verdict knows failures, lateness and where they go, and says that deliveries are
// on time only if some were.
func TestVerdictOfTasks(t *testing.T) {
	const h, ms = time.Hour, time.Millisecond
	parked := func(o *service.Overview) { o.Status.Parked.Messages = 1 }
	for name, x := range map[string]struct {
		all      int64 // that have failed
		ended    service.Ended
		lateness []schedule.Ends
		change   func(*service.Overview)
		level    int
		text     string
		reason   string
	}{
		"nothing":                {level: levelGood, text: "All is well"},
		"on time":                {lateness: hour(ms, ms), level: levelGood, text: "All is well"},
		"a look, and on time":    {lateness: hour(ms, ms), change: parked, level: levelWarning, text: "Deliveries are on time; 1 thing needs a look"},
		"a look, and no measure": {change: parked, level: levelWarning, text: "1 thing needs a look"},
		"some are late":          {lateness: hour(11*time.Second, ms, ms, ms), change: parked, level: levelWarning, text: "1 thing needs a look"},

		"failed long ago": {all: 10_000, level: levelWarning, text: "1 thing needs a look", reason: "10,000 tasks have failed, none of them in the last two hours"},
		"failed before":   {all: 9, ended: service.Ended{FailedBefore: 7}, level: levelWarning, text: "1 thing needs a look", reason: "7 tasks failed in the hour before the last, and none since; 9 in all"},
		"a few fail":      {all: 3, ended: service.Ended{Done: 5, Failed: 3, FailedBefore: 3}, level: levelWarning, text: "1 thing needs a look", reason: "3 tasks failed in the last hour, as many as in the hour before; 3 in all"},
		"many of many":    {all: 99, ended: service.Ended{Done: 10_000, Failed: 90, FailedBefore: 9}, level: levelWarning, text: "1 thing needs a look", reason: "90 tasks failed in the last hour, more than the 9 of the hour before; 99 in all"},
		"a tenth fails":   {all: 1200, ended: service.Ended{Done: 9999, Failed: 1000, FailedBefore: 1100}, level: levelBad, text: "1 thing is wrong", reason: "fewer than the 1,100 of the hour before"},
		"six hours late":  {lateness: hour(6*h, 6*h, 6*h), level: levelBad, text: "1 thing is wrong", reason: "Half of the tasks of the last hour were about 5h34m late or more; it is not changing"},
		"later and later": {lateness: hour(6*h, 2*h, h), level: levelBad, text: "1 thing is wrong", reason: "it is growing: 5h34m in the last 10m"},
		"less and less":   {lateness: hour(h, 2*h, 6*h), level: levelBad, text: "1 thing is wrong", reason: "it is falling: 1h in the last 10m"},
		"over":            {lateness: hour(ms, 2*h, 6*h), level: levelWarning, text: "1 thing needs a look", reason: "those of the last 10m were on time"},
		"a little":        {lateness: hour(20*time.Second, 20*time.Second), level: levelWarning, text: "1 thing needs a look", reason: "Half of the tasks of the last hour were about 20s late or more; it is not changing"},
		"the slowest":     {lateness: append(hour(), minute(noon, ms, h)), level: levelWarning, text: "1 thing needs a look", reason: "One task in a hundred of the last hour was about 1h late or more, retries included"},
		"nothing is done": {lateness: hour(6*h, 6*h, 6*h)[:2], level: levelBad, text: "1 thing is wrong", reason: "none was done in the last 10m"},
		"only just begun": {lateness: hour(6 * h), level: levelBad, text: "1 thing is wrong", reason: "none was done before the last 10m"},
	} {
		o := service.Overview{At: noon, History: service.History{Hour: x.lateness}, Ended: &x.ended}
		o.Status.Tasks = &status.Tasks{Counts: []status.TaskCount{{Queue: "mail", Status: schedule.StatusFailed, Count: x.all}}}
		if x.change != nil {
			x.change(&o)
		}
		v := judge(o, noon)
		var reasons []string
		for _, r := range v.Reasons {
			reasons = append(reasons, r.Text)
		}
		all := strings.Join(reasons, "\n")
		if v.Level != x.level || v.Text != x.text || !strings.Contains(all, x.reason) {
			t.Errorf("%s: level %d, %s: %s; want level %d, %s: %s", name, v.Level, v.Text, all, x.level, x.text, x.reason)
		}
	}
}
