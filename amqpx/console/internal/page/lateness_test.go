package page

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

// A minute stands where it belongs in the hour, and lines have gaps where nothing was
// done: a service leaves such minutes out.
func TestLatenessStandsAtItsMinute(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 30, 20, 0, time.UTC)
	at := func(minutes int) service.LatenessPoint {
		return service.LatenessPoint{From: now.Truncate(time.Minute).Add(time.Duration(minutes) * time.Minute), P50: 5 * time.Millisecond, P99: 10 * time.Millisecond, Count: 1}
	}
	for want, minutes := range map[string][]int{
		"M59.00 50.00h.4": {0},
		"M0.00 50.00h.4":  {-59},
		"M0.00 50.00h.4M29.00 50.00h.4L30.00 50.00": {-59, -30, -29},
		"M58.00 50.00h.4": {-60, -1}, // an old overview
	} {
		var points []service.LatenessPoint
		for _, m := range minutes {
			points = append(points, at(m))
		}
		if got := latenessOf(&request{now: now, prefs: preferences{zone: time.UTC}}, now, points).P50; got != want {
			t.Errorf("%v: %s, expected %s", minutes, got, want)
		}
	}
}
