package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A difference between clocks is a finding only if it exceeds the measurement error.
func TestClockDifference(t *testing.T) {
	for _, c := range []struct {
		low, high time.Duration
		found     string // part of the finding's text; empty for no finding
	}{
		{-time.Millisecond, time.Millisecond, ""},
		{500 * time.Millisecond, 1900 * time.Millisecond, ""},
		{900 * time.Millisecond, 1100 * time.Millisecond, ""},
		{1001 * time.Millisecond, 1003 * time.Millisecond, "1s ahead of this machine's"},
		{-70 * time.Second, -69 * time.Second, "1m10s behind this machine's clock (±500ms)"},
	} {
		r := Diagnose(Config{}, Snapshot{Version: "4.3.0", Clocks: []Clock{{Low: c.low, High: c.high}}})
		f, ok := byID(r, "clock-difference")
		if ok != (c.found != "") || !strings.Contains(f.What, c.found) {
			t.Errorf(`clock difference from %v to %v: finding reported = %t with %q, want a finding containing %q, or none for ""`, c.low, c.high, ok, f.What, c.found)
		}
	}
	r := Diagnose(Config{ClockTolerance: time.Minute}, Snapshot{Version: "4.3.0", Clocks: []Clock{{Low: 10 * time.Second, High: 11 * time.Second}}})
	if f, ok := byID(r, "clock-difference"); ok {
		t.Errorf("a difference within the tolerance: got the finding %q, want none", f.What)
	}
	if r := Diagnose(Config{}, Snapshot{}); !slices.Contains(r.areas(), string(AreaClock)) {
		t.Errorf("got the unchecked areas %v, want the clock among them", r.Unchecked)
	}
}

// During an alarm, the reason why no clock was measured is the alarm and not a missing permission.
func TestClocksDuringAlarm(t *testing.T) {
	r := Diagnose(Config{}, Snapshot{Blocked: "low on disk"})
	i := slices.IndexFunc(r.Unchecked, func(u Unchecked) bool { return u.Area == AreaClock })
	if i < 0 || !strings.Contains(r.Unchecked[i].Why, "low on disk") || strings.Contains(r.Unchecked[i].Why, "permission") {
		t.Errorf("got the unchecked areas %v, want the clock with the reason \"low on disk\"", r.Unchecked)
	}
}

// The findings name each node whose clock differs from this machine's clock or from the other nodes' clocks.
func TestClocksOfNodes(t *testing.T) {
	at := func(node string, ahead time.Duration) Clock {
		return Clock{Node: node, Low: ahead - time.Millisecond, High: ahead + time.Millisecond}
	}
	for name, c := range map[string]struct {
		clocks []Clock
		own    []string // objects of the finding clock-difference
		among  []string // objects of the finding node-clocks
		text   []string // parts of What and Fix of either finding
	}{
		"as they should be": {clocks: []Clock{at("n1", 0), at("n2", 500*time.Millisecond), at("n3", -400*time.Millisecond)}},
		"one ahead": {[]Clock{at("n1", 0), at("n2", 2*time.Millisecond), at("n3", 30*time.Second)}, []string{"n3"}, []string{"n3"},
			[]string{
				"n3's clock is 30s ahead of this machine's clock (±1ms)",
				"up to 30s apart. Compared with this machine's clock: n1 0s ahead (±1ms), n2 2ms ahead (±1ms), n3 30s ahead (±1ms)",
			}},
		"one of two": {[]Clock{at("n1", 0), at("n2", -3*time.Second)}, []string{"n2"}, []string{"n1", "n2"}, nil},
		"this one": {[]Clock{at("n1", time.Hour), at("n2", time.Hour)}, []string{"n1", "n2"}, nil, []string{
			"The clocks of 2 nodes differ", "on this machine, because the nodes agree",
		}},
		"each a little, two too far": {[]Clock{at("n1", -700*time.Millisecond), at("n2", 0), at("n3", 700*time.Millisecond)}, nil, []string{"n1", "n3"},
			[]string{"up to 1.4s apart"}},
		"unknown": {clocks: []Clock{{Node: "n1", Low: -time.Second, High: time.Second}, {Node: "n2", Low: 0, High: 2 * time.Second}}},
		"known by bounds": {
			[]Clock{{Node: "n1", Low: -time.Second, High: time.Second}, {Node: "n2", Low: 3 * time.Second, High: 5 * time.Second}},
			[]string{"n2"}, []string{"n1", "n2"}, nil,
		},
	} {
		r := Diagnose(Config{}, Snapshot{Version: "4.3.0", Clocks: c.clocks})
		own, _ := byID(r, "clock-difference")
		among, _ := byID(r, "node-clocks")
		if !slices.Equal(own.Objects, c.own) || !slices.Equal(among.Objects, c.among) {
			t.Errorf("%s: got %v as differing from this machine's clock and %v as differing from each other, want %v and %v",
				name, own.Objects, among.Objects, c.own, c.among)
		}
		for _, text := range c.text {
			if all := own.What + own.Fix + among.What; !strings.Contains(all, text) {
				t.Errorf("%s: got %s, want %q in it", name, all, text)
			}
		}
	}
}
