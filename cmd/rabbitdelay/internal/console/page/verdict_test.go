package page

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// minute returns the statistics of a minute in which 99 tasks had the lateness late and one task had the lateness most.
func minute(from time.Time, late, most time.Duration) taskview.CompletionStats {
	e := taskview.CompletionStats{From: from, To: from.Add(time.Minute), Done: 100, Late: make([]int64, 100)}
	for _, x := range []struct {
		late time.Duration
		n    int64
	}{{late, 98}, {most, 2}} {
		class := 0
		for i := range e.Late {
			one := taskview.CompletionStats{Done: 1, Late: make([]int64, 100)}
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

// hour returns the statistics of an hour with the given lateness in each of the last minutes, newest first.
func hour(late ...time.Duration) []taskview.CompletionStats {
	var list []taskview.CompletionStats
	for i, d := range late {
		list = append([]taskview.CompletionStats{minute(noon.Add(-time.Duration(i)*60/time.Duration(len(late))*time.Minute), d, 2*d)}, list...)
	}
	return list
}

// The verdict considers failures, lateness and their trend, and says that deliveries are on time
// only if there were any.
func TestVerdictOfTasks(t *testing.T) {
	const h, ms = time.Hour, time.Millisecond
	parked := func(o *service.Overview) { o.Status.Parked.Messages = 1 }
	for name, x := range map[string]struct {
		all      int64 // all failed tasks
		ended    service.Ended
		lateness []taskview.CompletionStats
		change   func(*service.Overview)
		level    int
		text     string
		reason   string
	}{
		"nothing":                {level: levelGood, text: "No problems"},
		"on time":                {lateness: hour(ms, ms), level: levelGood, text: "No problems"},
		"a look, and on time":    {lateness: hour(ms, ms), change: parked, level: levelWarning, text: "Deliveries are on time; 1 warning"},
		"a look, and no measure": {change: parked, level: levelWarning, text: "1 warning"},
		"some are late":          {lateness: hour(11*time.Second, ms, ms, ms), change: parked, level: levelWarning, text: "1 warning"},

		"failed long ago": {all: 10_000, level: levelWarning, text: "1 warning", reason: "10,000 failed tasks, but none in the last two hours"},
		"failed before": {
			all: 9, ended: service.Ended{FailedBefore: 7}, level: levelWarning, text: "1 warning",
			reason: "7 tasks failed in the hour before last, but none since then; 9 in total",
		},
		"a few fail": {
			all: 3, ended: service.Ended{Done: 5, Failed: 3, FailedBefore: 3}, level: levelWarning,
			text:   "1 warning",
			reason: "3 tasks failed in the last hour, as many as in the hour before; 3 in total",
		},
		"many of many": {
			all: 99, ended: service.Ended{Done: 10_000, Failed: 90, FailedBefore: 9}, level: levelWarning,
			text:   "1 warning",
			reason: "90 tasks failed in the last hour, up from 9 in the hour before; 99 in total",
		},
		"a tenth fails": {
			all: 1200, ended: service.Ended{Done: 9999, Failed: 1000, FailedBefore: 1100}, level: levelBad,
			text: "1 problem", reason: "down from 1,100 in the hour before",
		},
		"six hours late": {
			lateness: hour(6*h, 6*h, 6*h), level: levelBad, text: "1 problem",
			reason: "Half of the tasks in the last hour were at least 5h34m late; unchanged",
		},
		"later and later": {lateness: hour(6*h, 2*h, h), level: levelBad, text: "1 problem", reason: "rising: 5h34m in the last 10m"},
		"less and less":   {lateness: hour(h, 2*h, 6*h), level: levelBad, text: "1 problem", reason: "falling: 1h in the last 10m"},
		"over":            {lateness: hour(ms, 2*h, 6*h), level: levelWarning, text: "1 warning", reason: "tasks in the last 10m were on time"},
		"a little": {
			lateness: hour(20*time.Second, 20*time.Second), level: levelWarning, text: "1 warning",
			reason: "Half of the tasks in the last hour were at least 20s late; unchanged",
		},
		"the slowest": {
			lateness: append(hour(), minute(noon, ms, h)), level: levelWarning, text: "1 warning",
			reason: "1 % of the tasks in the last hour were at least 1h late, including retries",
		},
		"nothing is done": {lateness: hour(6*h, 6*h, 6*h)[:2], level: levelBad, text: "1 problem", reason: "none were done in the last 10m"},
		"only just begun": {lateness: hour(6 * h), level: levelBad, text: "1 problem", reason: "none were done before the last 10m"},
	} {
		o := service.Overview{At: noon, History: service.History{Hour: x.lateness}, Ended: &x.ended}
		o.Status.Tasks = &status.Tasks{Counts: []status.TaskCount{{Queue: "mail", Status: schedule.StatusFailed, Count: x.all}}}
		if x.change != nil {
			x.change(&o)
		}
		v := judge(english, o, noon)
		var reasons []string
		for _, r := range v.Reasons {
			reasons = append(reasons, r.Text)
		}
		all := strings.Join(reasons, "\n")
		if v.Level != x.level || v.Text != x.text || !strings.Contains(all, x.reason) {
			t.Errorf("%s: got level %d, text %q and reasons %q, want level %d, text %q and a reason containing %q", name, v.Level, v.Text, all, x.level, x.text, x.reason)
		}
	}
}

// A relay is running if its heartbeat is recent by the database's clock.
func TestVerdictByTheDatabasesClock(t *testing.T) {
	for _, skew := range []time.Duration{0, -time.Hour, time.Hour} {
		for since, running := range map[time.Duration]bool{5 * time.Second: true, 10 * time.Minute: false} {
			o := service.Overview{At: noon}
			o.Status.Broker = &status.Broker{}
			o.Status.Tasks = &status.Tasks{Skew: status.Span(skew), Relays: []taskview.Relay{{Name: "shop:1", Seen: noon.Add(skew - since)}}}
			v := judge(english, o, noon)
			if stopped := len(v.Reasons) == 1 && strings.HasPrefix(v.Reasons[0].Text, "No relay is running"); stopped == running {
				t.Errorf("clock skew %v, last heartbeat %v ago: got the reasons %+v, want \"No relay is running\": %t", skew, since, v.Reasons, !running)
			}
		}
	}
}
