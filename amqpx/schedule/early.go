package schedule

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
)

// clockSlack is a difference that adjusting clocks may make.
const clockSlack = 20 * time.Millisecond

// askClock reads the database's clock.
func (h *handler) askClock(ctx context.Context) (time.Time, error) {
	c, err := h.db.Conn(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return c.Clock(ctx, h.own)
}

// tooEarly returns the error that sends back a message whose task is due later by the
// database's clock. The delay before a retry is the same by every clock, and the consumer has seen to
// it; a Delivery that a test made may be early.
func (h *handler) tooEarly(ctx context.Context, d *amqpx.Delivery) error {
	h.clock.Refresh(ctx, h.clock.Ask)
	if _, received := d.Headers[amqpx.HeaderDue]; !received || d.DueAt.IsZero() || d.Attempt > 1 || d.Snoozes > 0 {
		return nil
	}
	if d.DueAt.Sub(h.clock.Now()) > clockSlack {
		return &lasthop.EarlyError{Offset: h.clock.Offset()}
	}
	return nil
}
