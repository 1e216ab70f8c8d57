package wire

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Each change to a Link results in the given status.
func TestStatus(t *testing.T) {
	refused := &amqp.Error{Code: amqp.AccessRefused}
	first, second := &Session{Gen: 1}, &Session{Gen: 2}
	cut := errors.New("cut")
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	s := Status{}
	for i, c := range []struct {
		change change
		want   Status
	}{
		{started{}, Status{State: StateConnecting, Since: at(0)}},
		{lost{refused}, Status{State: StateConnecting, Since: at(0), Err: refused, Refused: at(1)}},
		{lost{refused}, Status{State: StateConnecting, Since: at(0), Err: refused, Refused: at(1)}},
		{alarm{"memory"}, Status{State: StateConnecting, Since: at(0), Err: refused, Refused: at(1), Alarm: "memory"}},
		{ready{first}, Status{State: StateBlocked, Since: at(4), Refused: at(1), Alarm: "memory", Session: first, Sessions: 1}},
		{allClear{}, Status{State: StateConnected, Since: at(5), Refused: at(1), Session: first, Sessions: 1}},
		{alarm{"disk"}, Status{State: StateBlocked, Since: at(6), Refused: at(1), Alarm: "disk", Session: first, Sessions: 1}},
		{lost{cut}, Status{State: StateDisconnected, Since: at(7), Err: cut, Sessions: 1}},
		{ready{second}, Status{State: StateConnected, Since: at(8), Session: second, Sessions: 2}},
		{closing{}, Status{State: StateConnected, Since: at(8), Err: ErrClosed, Sessions: 2}},
		{closed{}, Status{State: StateClosed, Since: at(10), Err: ErrClosed, Sessions: 2}},
	} {
		if s = s.step(c.change, at(i)); s != c.want {
			t.Fatalf("change %d, %T: got %+v, want %+v", i, c.change, s, c.want)
		}
	}
}
