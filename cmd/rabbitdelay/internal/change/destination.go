package change

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Pause keeps the tasks for a destination in the table until Resume is called.
func (o Operator) Pause(ctx context.Context, d topology.Destination) error {
	return o.destination(ctx, d, Entry{Action: "destination.pause"}, func() error {
		return o.Store.Pause(ctx, schedule.NoTx, d, o.Name)
	})
}

// Resume sends the tasks for a destination again. If spread is not zero, the overdue tasks are sent over that period.
func (o Operator) Resume(ctx context.Context, d topology.Destination, spread time.Duration) error {
	e := Entry{Action: "destination.resume"}
	if spread > 0 {
		e.Detail = "over " + topology.FormatDuration(spread)
	}
	return o.destination(ctx, d, e, func() error { return o.Store.Resume(ctx, schedule.NoTx, d, spread) })
}

// SetRateLimit limits the number of tasks per second that are sent to a destination. Zero removes the limit.
func (o Operator) SetRateLimit(ctx context.Context, x schedule.RateLimit) error {
	e := Entry{Action: "destination.rate-limit", Detail: "none"}
	if x.PerSecond != 0 {
		e.Detail = fmt.Sprintf("%g a second", x.PerSecond)
	}
	return o.destination(ctx, topology.Destination{Queue: x.Queue, Exchange: x.Exchange}, e, func() error {
		return o.Store.SetRateLimit(ctx, schedule.NoTx, x)
	})
}

func (o Operator) destination(ctx context.Context, d topology.Destination, e Entry, do func() error) error {
	if (d.Queue == "") == (d.Exchange == "") {
		return &FieldError{"queue", "expected either a queue or an exchange"}
	}
	e.Target = cmp.Or(d.Queue, d.Exchange)
	return o.Record(ctx, e, do)
}
