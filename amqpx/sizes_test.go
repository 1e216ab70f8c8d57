package amqpx

import (
	"errors"
	"testing"
	"time"
)

func TestSizesStandForAMinute(t *testing.T) {
	var s sizes
	now := time.Now()
	if err := s.check(1<<30, now); err != nil {
		t.Errorf("check before a limit was learned: got %v, want no error", err)
	}
	s.learn(100, now)
	for _, c := range []struct {
		size  int
		after time.Duration
		ok    bool
	}{{100, 0, true}, {101, 0, false}, {101, askAgain - 1, false}, {101, askAgain, true}} {
		if err := s.check(c.size, now.Add(c.after)); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMessage) {
			t.Errorf("check of %d bytes after %v: got %v, want no error: %t", c.size, c.after, err, c.ok)
		}
	}
}
