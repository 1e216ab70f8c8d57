package polling

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestCorrection(t *testing.T) {
	for _, c := range []struct {
		x    Sample
		want time.Duration
	}{
		{Sample{Skew: 0, Uncertainty: 0}, 0},
		{Sample{Skew: 20 * time.Millisecond, Uncertainty: 0}, 0},
		{Sample{Skew: -21500 * time.Microsecond, Uncertainty: time.Millisecond}, -22 * time.Millisecond},
		{Sample{Skew: time.Second, Uncertainty: 980 * time.Millisecond}, 0},
		{Sample{Skew: time.Hour, Uncertainty: time.Second}, time.Hour},
	} {
		if got := c.x.correction(); got != c.want {
			t.Errorf("the correction of %+v: got %v, want %v", c.x, got, c.want)
		}
	}
}

// When the local clock is changed, the offset changes, but Now still returns the database's time.
func TestStep(t *testing.T) {
	epoch, ahead, up, asked := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), time.Duration(0), time.Duration(0), 0
	var err error
	ask := func(context.Context) (time.Time, error) { asked++; return epoch.Add(up), err }
	c := NewClock(func() time.Time { return epoch.Add(up + ahead) }, ask, nil)
	c.Up = func() time.Duration { return up }
	expect := func(what string, offset time.Duration, times int) {
		t.Helper()
		c.Refresh(t.Context(), ask)
		if c.Now() != epoch.Add(up) || c.Offset() != offset || asked != times {
			t.Errorf("%s: the clock is off by %v, with offset %v, after %d queries, want 0s, %v and %d",
				what, c.Now().Sub(epoch.Add(up)), c.Offset(), asked, offset, times)
		}
	}
	expect("at first", 0, 1)
	ahead = time.Hour
	expect("after a step", -time.Hour, 1)
	up += refreshEvery
	expect("measured again", -time.Hour, 2)
	up, err = up+refreshEvery, errors.New("away")
	for range 3 {
		c.Refresh(t.Context(), ask) // only the first call asks, because a failure is not retried immediately
	}
	if err = nil; c.Now() != epoch.Add(up) || asked != 3 {
		t.Errorf("after an error: the clock is off by %v after %d queries, want 0s and 3", c.Now().Sub(epoch.Add(up)), asked)
	}
}
