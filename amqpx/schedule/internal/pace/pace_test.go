package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

// What is written ends a long pause an interval later, and makes no pause longer.
func TestWaitEndsSooner(t *testing.T) {
	for _, x := range []struct{ pause, interval, want time.Duration }{
		{time.Hour, time.Minute, time.Second + time.Minute},
		{15 * time.Second, time.Hour, 15 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, written := time.Now(), make(chan struct{})
			time.AfterFunc(time.Second, func() { close(written) })
			if !Wait(t.Context(), x.pause, x.interval, written) || time.Since(began) != x.want {
				t.Errorf("a pause of %v with an interval of %v took %v, want %v", x.pause, x.interval, time.Since(began), x.want)
			}
		})
	}
}
