package polling

import (
	"testing"
	"testing/synctest"
	"time"
)

// When a task is written, a long pause is shortened to one interval from that time. A pause never becomes longer.
func TestWaitEndsSooner(t *testing.T) {
	for _, x := range []struct{ pause, interval, want time.Duration }{
		{time.Hour, time.Minute, time.Second + time.Minute},
		{15 * time.Second, time.Hour, 15 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, written := time.Now(), make(chan struct{})
			time.AfterFunc(time.Second, func() { close(written) })
			if !Wait(t.Context(), x.pause, x.interval, written) || time.Since(began) != x.want {
				t.Errorf("Wait with a pause of %v and an interval of %v: got %v, want %v", x.pause, x.interval, time.Since(began), x.want)
			}
		})
	}
}
