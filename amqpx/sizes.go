package amqpx

import (
	"fmt"
	"sync/atomic"
	"time"
)

// sizes remembers the broker's maximum message size if it is smaller than Config.MaxBody. The broker reports its limit
// only by closing the channel that all senders share. Therefore a body above the limit is sent to the broker only when
// the limit was learned more than askAgain ago, in case max_message_size has been raised.
type sizes struct{ last atomic.Pointer[sizeLimitSeen] }

type sizeLimitSeen struct {
	limit int
	at    time.Time
}

// askAgain is how long a limit is applied after it was learned.
const askAgain = time.Minute

func (s *sizes) learn(limit int, now time.Time) { s.last.Store(&sizeLimitSeen{limit, now}) }

// check rejects a body that is larger than a recently learned limit.
func (s *sizes) check(size int, now time.Time) error {
	if l := s.last.Load(); l != nil && size > l.limit && now.Sub(l.at) < askAgain {
		return brokerLimit(size, l.limit)
	}
	return nil
}

func brokerLimit(size, limit int) *MessageError {
	return &MessageError{"Body", fmt.Sprintf("%d bytes; the broker accepts at most %d (its max_message_size): store the payload elsewhere and send a reference", size, limit)}
}
