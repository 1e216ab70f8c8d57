package amqpx

import (
	"errors"
	"testing"
	"time"
)

func TestSizeLimit(t *testing.T) {
	for reason, want := range map[string]int{
		"PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216": 16777216,
		"PRECONDITION_FAILED - message size 536870913 is larger than max size 536870912":          536870912,
		"PRECONDITION_FAILED - message size is odd":                                               0,
		"PRECONDITION_FAILED - unknown delivery tag 1":                                            0,
	} {
		if limit, ok := sizeLimit(reason); ok != (want > 0) || ok && limit != want {
			t.Errorf("%s: %d, %t; want %d", reason, limit, ok, want)
		}
	}
}

func TestSizesStandForAMinute(t *testing.T) {
	var s sizes
	now := time.Now()
	if err := s.check(1<<30, now); err != nil {
		t.Errorf("nothing learnt: %v", err)
	}
	s.learn(100, now)
	for _, c := range []struct {
		size  int
		after time.Duration
		ok    bool
	}{{100, 0, true}, {101, 0, false}, {101, askAgain - 1, false}, {101, askAgain, true}} {
		if err := s.check(c.size, now.Add(c.after)); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMessage) {
			t.Errorf("%d bytes after %v: %v", c.size, c.after, err)
		}
	}
}
