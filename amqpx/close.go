package amqpx

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
)

// CloseError is returned by Close if the end of its context cut off messages that were not yet confirmed, or handlers
// that had not yet finished. errors.Is and errors.As find the context's error and the errors in Messages.
type CloseError struct {
	// Unconfirmed counts the messages whose send failed after Close's context had ended, or had not returned when Close
	// did. It includes the retries and dead letters of consumers.
	Unconfirmed int
	// Messages holds the errors of the first 100 sends that failed, which their callers have received too. Each error
	// says whether the message was not sent or whether its outcome is unknown.
	Messages []*SendError
	// Handlers counts the handlers that were cut off when Close's context ended: they failed after that, or were still
	// running. Their messages were not acknowledged and will be delivered again.
	Handlers int
	// Cause is the context's error.
	Cause error
}

func (e *CloseError) Error() string {
	var left []string
	if e.Unconfirmed > 0 {
		text := fmt.Sprintf("messages not confirmed: %d", e.Unconfirmed)
		if len(e.Messages) > 0 {
			text += ", first " + e.Messages[0].Error()
		}
		left = append(left, text)
	}
	if e.Handlers > 0 {
		left = append(left, fmt.Sprintf("handlers cut off: %d (their messages will be delivered again)", e.Handlers))
	}
	return fmt.Sprintf("close: %v: %s", e.Cause, strings.Join(left, "; "))
}

// Unwrap returns Cause and the errors in Messages.
func (e *CloseError) Unwrap() []error {
	errs := []error{e.Cause}
	for _, m := range e.Messages {
		errs = append(errs, m)
	}
	return errs
}

// underWay counts, without a lock, the messages that are being sent, each from the call to Send until its result is
// known.
type underWay struct {
	count atomic.Int64  // number of messages; after close, minus notAccepting
	none  chan struct{} // closed when there are no messages and no more can be admitted
	once  sync.Once

	keep   atomic.Bool // whether failures are recorded
	mu     sync.Mutex
	failed int
	first  []*SendError
}

// notAccepting is what close subtracts from the count, so that a negative count means that no more messages are
// admitted.
const notAccepting = 1 << 62

// maxCloseMessages bounds CloseError.Messages.
const maxCloseMessages = 100

func newUnderWay() *underWay { return &underWay{none: make(chan struct{})} }

// admit adds n messages to the count, or returns ErrClosed if the client is being closed.
func (u *underWay) admit(n int) error {
	for {
		have := u.count.Load()
		if have < 0 {
			return ErrClosed
		}
		if u.count.CompareAndSwap(have, have+int64(n)) {
			return nil
		}
	}
}

// done removes one message from the count. A non-nil error is recorded once keepFailures has been called.
func (u *underWay) done(err error) {
	if err != nil && u.keep.Load() {
		u.mu.Lock()
		u.failed++
		if f, ok := errors.AsType[*SendError](err); ok && len(u.first) < maxCloseMessages {
			u.first = append(u.first, f)
		}
		u.mu.Unlock()
	}
	u.leave(1)
}

func (u *underWay) leave(n int) {
	if u.count.Add(-int64(n)) == -notAccepting {
		u.once.Do(func() { close(u.none) })
	}
}

// close makes admit refuse further messages.
func (u *underWay) close() {
	u.count.Add(-notAccepting)
	u.leave(0)
}

// len returns the number of messages that are being sent.
func (u *underWay) len() int {
	n := u.count.Load()
	if n < 0 {
		n += notAccepting
	}
	return int(n)
}

// keepFailures starts recording failures, which CloseError then contains.
func (u *underWay) keepFailures() { u.keep.Store(true) }

// failures waits up to wire.CloseWait for the remaining messages, which fail because their connections are closed. It
// returns the number of failed messages, in which it includes any that still remain, and the first recorded errors.
func (u *underWay) failures() (failed int, first []*SendError) {
	select {
	case <-u.none:
	case <-time.After(wire.CloseWait): // a send that has not returned by then is counted as failed
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failed + u.len(), u.first
}
