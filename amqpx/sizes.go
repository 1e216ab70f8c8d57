package amqpx

import (
	"fmt"
	"sync/atomic"
	"time"
)

// sizes remembers the largest body that the broker takes, where that is less
// than Config.MaxBody. The broker tells it only by closing the channel that all
// senders share, so it is not asked again for each message, but once in a while:
// its max_message_size may have been raised.
type sizes struct{ last atomic.Pointer[sizeLimitSeen] }

type sizeLimitSeen struct {
	limit int
	at    time.Time
}

// askAgain is how long a limit stands.
const askAgain = time.Minute

func (s *sizes) learn(limit int, now time.Time) { s.last.Store(&sizeLimitSeen{limit, now}) }

// check refuses a body over a limit that was learnt lately.
func (s *sizes) check(size int, now time.Time) error {
	if l := s.last.Load(); l != nil && size > l.limit && now.Sub(l.at) < askAgain {
		return brokerLimit(size, l.limit)
	}
	return nil
}

func brokerLimit(size, limit int) *MessageError {
	return &MessageError{"Body", fmt.Sprintf("%d bytes; the broker takes at most %d (its max_message_size): store the payload elsewhere and send a reference", size, limit)}
}
