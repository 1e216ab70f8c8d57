package page

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A minute stands where it belongs in the hour, and lines have gaps where nothing was
// done: a service leaves such minutes out.
func TestEndedStandsAtItsMinute(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 30, 20, 0, time.UTC)
	at := func(minutes int) schedule.Ends {
		from := now.Truncate(time.Minute).Add(time.Duration(minutes) * time.Minute)
		return schedule.Ends{From: from, To: from.Add(time.Minute), Done: 1, Late: []int64{0, 0, 0, 0, 1}} // 4 to 5 ms
	}
	for want, minutes := range map[string][]int{
		"M59.50 55.00h.4": {0},
		"M0.50 55.00h.4":  {-59},
		"M0.50 55.00h.4M29.50 55.00h.4L30.50 55.00": {-59, -30, -29},
		"M58.50 55.00h.4": {-60, -1}, // an old overview
	} {
		o := service.Overview{At: now}
		for _, m := range minutes {
			o.History.Hour = append(o.History.Hour, at(m))
		}
		c := chartEnded(&request{now: now, prefs: preferences{zone: time.UTC}}, o)
		if c.P50 != want {
			t.Errorf("%v: %s, expected %s", minutes, c.P50, want)
		}
		for _, row := range c.Rows {
			if row.X < 0 || row.X >= c.Slots {
				t.Errorf("%v: a bar at %d", minutes, row.X)
			}
		}
	}
}

// Bars of one width show numbers; those of different widths show tasks an hour, so that the
// same rate is the same height however long a bar is.
func TestHistogramTellsItsScale(t *testing.T) {
	bins := func(hours ...int) (list []schedule.Bin) {
		at := noon
		for i, h := range hours {
			list = append(list, schedule.Bin{From: at, To: at.Add(time.Duration(h) * time.Hour), Count: int64(h) * []int64{10, 10, 1000, 0}[i]})
			at = at.Add(time.Duration(h) * time.Hour)
		}
		return list
	}
	var v histogram
	if h := v.scale(bins(1, 24, 240, 2400)); h[0] != h[1] || h[2] != 100 || h[3] != 0 || v.Top != "1,000" || v.Bottom != "10" || len(v.Lines) != 3 {
		t.Errorf("%v, %+v", h, v)
	}
	v = histogram{}
	if h := v.scale(bins(1, 1, 1)); h[0] != h[1] || h[2] != 100 || v.Top != "1,000" || v.Bottom != "0" || v.Scale != "Tasks in each 1h." {
		t.Errorf("%v, %+v", h, v)
	}
	v = histogram{}
	if h := v.scale(bins(1, 24)[:0]); len(h) != 0 {
		t.Errorf("of nothing: %v", h)
	}
}
