package consume

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// brokerClock asks the broker for its time when a consumer needs it to decide how long to hold messages. The zero
// value is ready to use.
type brokerClock struct {
	mu    sync.Mutex
	done  chan struct{} // closed when the current request has ended; nil if there is none
	again time.Time     // when the broker may be asked again
}

const (
	askTimeout = 5 * time.Second
	// askEvery is how long the client waits after a request that succeeded before it asks again, and askRefused after
	// one that failed.
	askEvery   = 5 * time.Minute
	askRefused = time.Minute
)

// ask starts a request for the broker's time unless one was made recently. It returns a channel that is closed
// when the current request has ended, or nil if there is none.
func (b *brokerClock) ask(request func() error) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil || time.Now().Before(b.again) {
		return b.done
	}
	done := make(chan struct{})
	b.done = done
	go func() {
		pause := askEvery
		if request() != nil {
			pause = askRefused
		}
		b.mu.Lock()
		b.done, b.again = nil, time.Now().Add(pause)
		b.mu.Unlock()
		close(done)
	}()
	return done
}

// askClock asks the broker for its time unless that was done recently. It returns a channel that is closed when the
// current request has ended and its answer, if any, has been recorded, or nil if there is none.
func (a *Consumers) askClock() <-chan struct{} {
	return a.clock.ask(func() error {
		err := a.askTime()
		if err != nil {
			a.cfg.Log.Info("could not read the broker's clock; messages that arrive later than planned are held for their whole lead", zap.Error(err))
		}
		return err
	})
}

// askTime asks the broker for its time. The request publishes a message, so it uses the publishing connection. During
// an alarm the broker blocks every connection that has published, and the connection for declarations must never be
// blocked.
func (a *Consumers) askTime() error {
	ctx, cancel := context.WithTimeout(a.cfg.Stop, askTimeout)
	defer cancel()
	sess, err := a.cfg.Publisher.Publishing(ctx, true)
	if err != nil {
		return err
	}
	at, err := live.Broker{Conn: sess.Conn}.Time(ctx, a.cfg.Strategy.Prefix())
	if err != nil {
		return err
	}
	a.clocks.Told(at, time.Since(a.began))
	return nil
}
