package amqpx

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// brokerClock asks the broker for its time where a consumer needs it to decide how long to hold messages.
// The zero value is ready.
type brokerClock struct {
	mu    sync.Mutex
	done  chan struct{} // closed when the broker has answered; nil if it is not being asked
	again time.Time     // when it may be asked again
}

const (
	askTimeout = 5 * time.Second
	// askEvery is how long an answer is good for, and askRefused how long a client that got none waits.
	askEvery   = 5 * time.Minute
	askRefused = time.Minute
)

// ask begins to ask the broker, unless that was done lately, and returns what is closed at the end; nil if there
// is nothing to wait for.
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

// askTime asks the broker for its time. It does so on the publishing connection, as it publishes a message: one for
// declarations must never be blocked for having published.
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
