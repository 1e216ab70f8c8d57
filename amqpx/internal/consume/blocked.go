package consume

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// blocked records the handlers that wait because their database is unavailable.
type blocked struct {
	mu    sync.Mutex
	state atomic.Pointer[blockedState] // nil if no handler waits
}

type blockedState struct {
	count int
	since time.Time // when the first of them began to wait
	err   error     // the error of the handler that began to wait last
}

// worthLogging is the minimum duration of a wait whose end is logged.
const worthLogging = time.Second

// Blocked implements outage.Consumer.
func (k *Consumer) Blocked(err error) (unblock func()) {
	k.outages.Warn(k.log, "", "a handler waits because its database is unavailable", zap.Error(err))
	b := &k.blocked
	b.mu.Lock()
	defer b.mu.Unlock()
	next := blockedState{count: 1, since: time.Now(), err: err}
	if now := b.state.Load(); now != nil {
		next.count, next.since = now.count+1, now.since
	}
	b.state.Store(&next)
	return k.unblock
}

func (k *Consumer) unblock() {
	b := &k.blocked
	b.mu.Lock()
	defer b.mu.Unlock()
	next := *b.state.Load()
	if next.count--; next.count > 0 {
		b.state.Store(&next)
		return
	}
	b.state.Store(nil)
	if waited := time.Since(next.since); waited > worthLogging {
		k.log.Info("no handler waits for its database any more", zap.Duration("waited", waited))
	}
}

// Ending implements outage.Consumer.
func (k *Consumer) Ending() <-chan struct{} { return k.ending.Done() }
