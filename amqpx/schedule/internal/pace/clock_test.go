package pace

import (
	"testing"
	"time"
)

func TestCorrection(t *testing.T) {
	for _, c := range []struct {
		x    Sample
		want time.Duration
	}{
		{Sample{0, 0}, 0},
		{Sample{20 * time.Millisecond, 0}, 0},
		{Sample{-21500 * time.Microsecond, time.Millisecond}, -22 * time.Millisecond},
		{Sample{time.Second, 980 * time.Millisecond}, 0},
		{Sample{time.Hour, time.Second}, time.Hour},
	} {
		if got := c.x.correction(); got != c.want {
			t.Errorf("%+v: %v, expected %v", c.x, got, c.want)
		}
	}
}
