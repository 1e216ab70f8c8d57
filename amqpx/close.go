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

// CloseError is what Close returns when its context ended before everything was
// done. errors.Is and errors.As find the context's error and those of Messages.
type CloseError struct {
	// Unconfirmed counts the messages of Send and SendBatch that were not confirmed.
	// Their callers got the same errors.
	Unconfirmed int
	// Messages are the errors of the first 100 of them: which were not sent, and of
	// which nobody knows.
	Messages []*SendError
	// Handlers counts those that the end of Close's context cut off: they failed after
	// it, or were still running. Their messages were not acknowledged and will be
	// delivered again.
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
		left = append(left, fmt.Sprintf("handlers cut off, whose messages will be delivered again: %d", e.Handlers))
	}
	return fmt.Sprintf("close: %v: %s", e.Cause, strings.Join(left, "; "))
}

// Unwrap returns the context's error and those of the messages.
func (e *CloseError) Unwrap() []error {
	errs := []error{e.Cause}
	for _, m := range e.Messages {
		errs = append(errs, m)
	}
	return errs
}

// underWay counts the messages between the call of a Send and its return, without
// a lock.
type underWay struct {
	count atomic.Int64  // messages, less notAccepting after close
	none  chan struct{} // closed when there are none and will be none
	once  sync.Once

	keep   atomic.Bool // failures are kept
	mu     sync.Mutex
	failed int
	first  []*SendError
}

// notAccepting is what close subtracts.
const notAccepting = 1 << 62

// maxCloseMessages bounds CloseError.Messages.
const maxCloseMessages = 100

func newUnderWay() *underWay { return &underWay{none: make(chan struct{})} }

// admit takes n messages in, unless the client is being closed.
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

// done records that one message was confirmed or has failed.
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

// close refuses further messages.
func (u *underWay) close() {
	u.count.Add(-notAccepting)
	u.leave(0)
}

// len is the number of messages under way.
func (u *underWay) len() int {
	n := u.count.Load()
	if n < 0 {
		n += notAccepting
	}
	return int(n)
}

// keepFailures begins to keep what fails from now on.
func (u *underWay) keepFailures() { u.keep.Store(true) }

// failures waits for what is still under way, which the end of the connections
// makes return, and gives what was kept.
func (u *underWay) failures() (failed int, first []*SendError) {
	select {
	case <-u.none:
	case <-time.After(wire.CloseWait): // one that is deaf counts, too
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failed + u.len(), u.first
}
