package schedule

import (
	"errors"
	"testing"
	"time"
)

// An invalid timetable is an error, and does not panic.
func TestNextOfAnInvalidTimetable(t *testing.T) {
	for _, r := range []Recurring{{}, {Every: -time.Second}, {Every: time.Millisecond}, {Cron: "@daily", Every: time.Second}, {Cron: "odd"}} {
		list, err := r.Next(time.Now(), 1)
		if _, named := errors.AsType[*RecurringError](err); list != nil || !named {
			t.Errorf("Next of %+v: got %v, %v, want no occurrences and a *RecurringError", r, list, err)
		}
	}
}
