package amqpx

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology/live"
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
	// askEvery is how long an answer is valid, and askRefused is how long the client waits after a request that
	// failed.
	askEvery   = 5 * time.Minute
	askRefused = time.Minute
)

// ask starts a request for the broker's time unless one was made recently. It returns a channel that is closed
// when the current request has ended, or nil if there is none.
func (b *brokerClock) ask(c *Client) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil || time.Now().Before(b.again) {
		return b.done
	}
	done := make(chan struct{})
	b.done = done
	go func() {
		pause := askEvery
		if err := c.askTime(); err != nil {
			pause = askRefused
			c.log.Info("the broker's clock is unknown; messages that come after the time for which they are planned are held for their whole lead", zap.Error(err))
		}
		b.mu.Lock()
		b.done, b.again = nil, time.Now().Add(pause)
		b.mu.Unlock()
		close(done)
	}()
	return done
}

// askTime asks the broker for its time. It uses the publishing connection because the request publishes a message,
// and the connection for declarations must never be blocked for publishing.
func (c *Client) askTime() error {
	ctx, cancel := context.WithTimeout(c.stop, askTimeout)
	defer cancel()
	sess, err := c.pub.Wait(ctx, true)
	if err != nil {
		return err
	}
	at, err := live.Broker{Conn: sess.Conn}.Time(ctx, c.strategy.Prefix())
	if err != nil {
		return err
	}
	c.clocks.Told(at, time.Since(c.began))
	return nil
}
