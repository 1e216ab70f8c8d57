package amqpx

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestPermanent(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("connect: %w", &DialError{Final: true}), true},
		{&DialError{Err: &amqp.Error{Code: amqp.FrameError}}, false},
		{&amqp.Error{Code: amqp.AccessRefused}, true},
		{&amqp.Error{Code: amqp.ConnectionForced}, false},
	} {
		if got := permanent(c.err); got != c.want {
			t.Errorf("permanent(%v) = %t, want %t", c.err, got, c.want)
		}
	}
}
