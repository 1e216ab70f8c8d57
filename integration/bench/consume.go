package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
)

// bare and noEffect return handlers that do nothing.

func bare(*turn) amqpx.Handler {
	return func(context.Context, *amqpx.Delivery) error { return nil }
}

func noEffect(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }

func idempotently(t *turn) amqpx.Handler {
	return idempotency.Handler(t.db, noEffect, idempotency.WithGroup(t.o.Concurrency))
}

func asTasks(t *turn) amqpx.Handler {
	return schedule.Handler(t.db, noEffect, schedule.WithGroup(t.o.Concurrency))
}

// consume empties a queue of n messages with a handler. If rows is set, the messages are tasks with rows in the
// database.
func consume(n int, rows bool, handler func(t *turn) amqpx.Handler) work {
	return func(ctx context.Context, t *turn) error {
		if err := t.fill(ctx, n, rows); err != nil {
			return err
		}
		handle := handler(t)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var handled atomic.Int64
		return t.measure(n, func() error {
			err := t.c.Consume(ctx, t.c.queue, func(hctx context.Context, d *amqpx.Delivery) error {
				err := handle(hctx, d)
				if err != nil || handled.Add(1) == int64(n) {
					cancel(err)
				}
				return err
			}, amqpx.WithConcurrency(t.o.Concurrency), amqpx.WithPrefetch(4*t.o.Concurrency)) // amqpx's default
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return errors.Join(cause, err)
			}
			return err
		})
	}
}

// rawConsume empties a queue of n messages with the client library alone, without a handler.
func rawConsume(n int) work {
	return func(ctx context.Context, t *turn) error {
		if err := t.fill(ctx, n, false); err != nil {
			return err
		}
		ch, err := t.c.conn.Channel()
		if err != nil {
			return err
		}
		defer ch.Close()
		if err := ch.Qos(4*t.o.Concurrency, 0, false); err != nil {
			return err
		}
		return t.measure(n, func() error {
			deliveries, err := ch.ConsumeWithContext(ctx, t.c.queue, "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			var all errgroup.Group
			var handled atomic.Int64
			for range t.o.Concurrency {
				all.Go(func() error {
					for handled.Add(1) <= int64(n) {
						d, ok := <-deliveries
						if !ok {
							return fmt.Errorf("queue %s: the channel was closed before %d messages had arrived", t.c.queue, n)
						}
						if err := d.Ack(false); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return all.Wait()
		})
	}
}

// fill puts messages into the destination queue and, if rows is set, their rows into the task table.
func (t *turn) fill(ctx context.Context, n int, rows bool) error {
	for sent := 0; sent < n; sent += batchSize {
		msgs := make([]amqpx.Message, min(batchSize, n-sent))
		list := make([]schedule.Task, len(msgs))
		for i := range msgs {
			id, content := uuid.NewString(), body(t.o.Body, sent+i)
			msgs[i] = amqpx.Message{ID: id, Queue: t.c.queue, Body: content}
			list[i] = schedule.Task{ID: id, Queue: t.c.queue, DeliverAt: time.Now().Add(-time.Second), Body: content}
		}
		if rows {
			for i := range msgs {
				msgs[i].Version = 1
			}
			store, err := schedule.New(t.db, nil, schedule.Config{})
			if err == nil {
				err = store.ScheduleBatch(ctx, schedule.NoTx, list)
			}
			if err != nil {
				return err
			}
		}
		if err := t.c.SendBatch(ctx, msgs); err != nil {
			return err
		}
	}
	return nil
}

// observed makes a client record all metrics and a share of the traces with an SDK whose exporter discards them.
func (c *client) observed(sampled float64) *client {
	c.observe = func() (hook amqpx.Hook, end func(context.Context) error, err error) {
		traces := trace.NewTracerProvider(trace.WithSampler(trace.TraceIDRatioBased(sampled)), trace.WithBatcher(tracetest.NewNoopExporter()))
		metrics := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
		tel, err := telemetry.New(telemetry.Config{
			TracerProvider: traces, MeterProvider: metrics,
			Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
		})
		if err != nil {
			return hook, nil, err
		}
		return tel.Hook(), func(ctx context.Context) error { return errors.Join(traces.Shutdown(ctx), metrics.Shutdown(ctx)) }, nil
	}
	return c
}
