package amqpx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestSizeLimit(t *testing.T) {
	closed := func(code int, reason string) error {
		return fmt.Errorf("%w: channel closed: %w", errChannelEnded, &amqp.Error{Code: code, Reason: reason})
	}
	cases := []struct {
		err   error
		limit int
		ok    bool
	}{
		{closed(406, "PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216"), 16777216, true},
		{closed(406, "PRECONDITION_FAILED - message size 536870913 is larger than max size 536870912"), 536870912, true},
		{closed(406, "PRECONDITION_FAILED - message size is odd"), 0, false},
		{closed(406, "PRECONDITION_FAILED - unknown delivery tag 1"), 0, false},
		{closed(404, "message size 20 is larger than max size 10"), 0, false},
		{&amqp.Error{Code: 406, Reason: "message size 20 is larger than max size 10"}, 0, false},
		{errors.New("message size 20 is larger than max size 10"), 0, false},
	}
	for _, c := range cases {
		if limit, ok := sizeLimit(c.err); ok != c.ok || ok && limit != c.limit {
			t.Errorf("%v: %d, %t; want %d, %t", c.err, limit, ok, c.limit, c.ok)
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
