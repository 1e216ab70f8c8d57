package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
)

// Of a handler's look at the database's clock.
const (
	clockEvery = time.Minute
	// clockSlack is a difference that adjusting clocks may make.
	clockSlack = 20 * time.Millisecond
)

// dueClock is the database's clock, by which tasks are due, as a handler knows it.
type dueClock struct {
	pace.Clock

	mu    sync.Mutex
	asked time.Time // when it was adjusted last
}

func (h *handler) newClock() *dueClock {
	c := &dueClock{}
	c.Local, c.Measured = h.now, func(_, _ time.Duration) {}
	c.Ask = func(ctx context.Context) (time.Time, error) {
		conn, err := h.db.Conn(ctx)
		if err != nil {
			return time.Time{}, err
		}
		return conn.Clock(ctx, h.now)
	}
	return c
}

// refresh adjusts the clock where that is due. What the database does not tell is asked
// again later: the message itself is about to find out why.
func (c *dueClock) refresh(ctx context.Context) {
	if !c.mu.TryLock() {
		return // somebody else is at it
	}
	defer c.mu.Unlock()
	if now := c.Local(); c.asked.IsZero() || now.Sub(c.asked) >= clockEvery {
		c.asked = now
		_ = c.Adjust(ctx)
	}
}

// tooEarly returns the error that sends back a message whose task is due later by the
// database's clock. A Delivery that a test made may be early.
func (h *handler) tooEarly(ctx context.Context, d *amqpx.Delivery) error {
	if _, received := d.Headers[amqpx.HeaderDue]; !received || d.DueAt.IsZero() {
		return nil
	}
	h.clock.refresh(ctx)
	if d.DueAt.Sub(h.clock.Now()) > clockSlack {
		return &lasthop.EarlyError{Offset: h.clock.Offset()}
	}
	return nil
}
