package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Only a difference that is certain is a finding.
func TestClockDifference(t *testing.T) {
	for _, c := range []struct {
		low, high time.Duration
		found     string // in the text; empty for no finding
	}{
		{-time.Millisecond, time.Millisecond, ""},
		{500 * time.Millisecond, 1900 * time.Millisecond, ""},
		{900 * time.Millisecond, 1100 * time.Millisecond, ""},
		{1001 * time.Millisecond, 1003 * time.Millisecond, "1s ahead of this machine's"},
		{-70 * time.Second, -69 * time.Second, "1m10s behind this machine's (±500ms)"},
	} {
		r := Diagnose(Config{}, Snapshot{Version: "4.3.0", Clock: &Clock{Low: c.low, High: c.high}})
		f, ok := byID(r, "clock-difference")
		if ok != (c.found != "") || !strings.Contains(f.What, c.found) {
			t.Errorf("%v to %v: %t, %s", c.low, c.high, ok, f.What)
		}
	}
	r := Diagnose(Config{ClockTolerance: time.Minute}, Snapshot{Version: "4.3.0", Clock: &Clock{Low: 10 * time.Second, High: 11 * time.Second}})
	if _, ok := byID(r, "clock-difference"); ok {
		t.Error("the tolerance does not count")
	}
	if r := Diagnose(Config{}, Snapshot{}); !slices.Contains(r.areas(), string(AreaClock)) {
		t.Errorf("unseen is %v", r.Unseen)
	}
}
