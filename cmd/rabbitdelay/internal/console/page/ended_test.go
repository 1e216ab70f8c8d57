package page

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Each minute is drawn at its place in the hour, and lines have gaps for minutes in which no task was done. The service
// returns no entries for such minutes.
func TestEndedIsDrawnAtItsMinute(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 30, 20, 0, time.UTC)
	at := func(minutes int) taskview.CompletionStats {
		from := now.Truncate(time.Minute).Add(time.Duration(minutes) * time.Minute)
		return taskview.CompletionStats{From: from, To: from.Add(time.Minute), Done: 1, Late: []int64{0, 0, 0, 0, 1}} // 4 to 5 ms
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
		c := chartEnded(&request{now: now, prefs: preferences{zone: time.UTC}, lang: english}, o)
		if c.P50 != want {
			t.Errorf("%v: got %s, want %s", minutes, c.P50, want)
		}
		for _, row := range c.Rows {
			if row.X < 0 || row.X >= c.Slots {
				t.Errorf("%v: got a bar at position %d, want at least 0 and less than %d", minutes, row.X, c.Slots)
			}
		}
	}
}

// If all bars have the same width, their height is the number of tasks. If the widths differ, the height is the number
// of tasks per hour, so that the same rate has the same height.
func TestHistogramTellsItsScale(t *testing.T) {
	bins := func(hours ...int) (list []taskview.HistogramBucket) {
		at := noon
		for i, h := range hours {
			list = append(list, taskview.HistogramBucket{From: at, To: at.Add(time.Duration(h) * time.Hour), Count: int64(h) * []int64{10, 10, 1000, 0}[i]})
			at = at.Add(time.Duration(h) * time.Hour)
		}
		return list
	}
	var v histogram
	if h := v.scale(english, bins(1, 24, 240, 2400)); h[0] != h[1] || h[2] != 100 || h[3] != 0 || v.Top != "1,000" || v.Bottom != "10" || len(v.Lines) != 3 {
		t.Errorf(`got the heights %v and %+v, want the first to be %v, the third 100 and the fourth 0, Top = "1,000", Bottom = "10" and 3 lines`, h, v, h[1])
	}
	v = histogram{}
	if h := v.scale(english, bins(1, 1, 1)); h[0] != h[1] || h[2] != 100 || v.Top != "1,000" || v.Bottom != "0" || v.Scale != "Tasks per 1h." {
		t.Errorf(`got the heights %v and %+v, want the first to be %v and the third 100, Top = "1,000", Bottom = "0" and Scale = "Tasks per 1h."`, h, v, h[1])
	}
	v = histogram{}
	if h := v.scale(english, bins(1, 24)[:0]); len(h) != 0 {
		t.Errorf("the histogram without data: got the heights %v, want none", h)
	}
}
