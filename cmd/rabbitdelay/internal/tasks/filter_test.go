package tasks

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func TestMoment(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"now": 0,
		"0s":  0,
		"2h":  2 * time.Hour,
		"+2h": 2 * time.Hour,
		"-7d": -7 * 24 * time.Hour,
	} {
		var m moment
		before := time.Now()
		if err := m.Set(text); err != nil {
			t.Errorf("Set(%q): got %v, want no error", text, err)
		}
		if m.at.Before(before.Add(want)) || m.at.After(time.Now().Add(want)) {
			t.Errorf("Set(%q): got the time %v, want %v after %v", text, m.at, want, before)
		}
		if m.String() != text {
			t.Errorf("Set(%q): String returned %q, want the same text", text, m.String())
		}
	}
	var m moment
	if err := m.Set("2026-01-31T08:00:00Z"); err != nil {
		t.Error(err)
	}
	if want := time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC); !m.at.Equal(want) {
		t.Errorf("got %v, want %v", m.at, want)
	}
	for _, bad := range []string{"", "-", "--1h", "+-1h", "-+1h", "1", "tomorrow"} {
		if err := m.Set(bad); err == nil {
			t.Errorf("Set(%q): got no error", bad)
		}
	}
}

func TestRemedies(t *testing.T) {
	for want, e := range map[string]schedule.StatusError{
		"use revive":          {Action: "run", Status: schedule.StatusFailed},
		"nothing to cancel":   {Action: "cancel", Status: schedule.StatusFailed},
		"the task is done":    {Action: "revive", Status: schedule.StatusDone},
		"nothing to do":       {Action: "cancel", Status: schedule.StatusCancelled},
		"or replace the task": {Action: "reschedule", Status: schedule.StatusCancelled},
		"reschedule or run":   {Action: "revive", Status: schedule.StatusPending},
	} {
		if got := remedy(&e); !strings.Contains(got, want) {
			t.Errorf("remedy(%+v) = %s, want %q in it", e, got, want)
		}
	}
}
