package amqpx

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Consumer is one call of Consume, as ConsumeAll takes it.
type Consumer struct {
	Queue   string
	Handler Handler
	Options []ConsumeOption
}

// ConsumeError is what Consume and ConsumeAll return: why the consumer of a queue ended, or
// did not begin.
type ConsumeError struct {
	Queue string
	Err   error
}

func (e *ConsumeError) Error() string { return fmt.Sprintf("consume %s: %v", e.Queue, e.Err) }

// Unwrap returns the cause.
func (e *ConsumeError) Unwrap() error { return e.Err }

// ConsumeAll is Consume for several queues. It runs until ctx is cancelled or the client is
// closed, and ends all when one ends for good, so that no process goes on with half of its
// consumers. Nothing is consumed unless all consumers are valid. It returns when all have
// ended; the error joins a *ConsumeError for each queue that has one.
func (c *Client) ConsumeAll(ctx context.Context, consumers ...Consumer) error {
	if len(consumers) == 0 {
		return fmt.Errorf("%w: no consumers; give ConsumeAll one for each queue", ErrConfig)
	}
	all := make([]*consumer, len(consumers))
	errs := make([]error, len(consumers))
	for i, x := range consumers {
		all[i], errs[i] = c.newConsumer(x.Queue, x.Handler, x.Options)
	}
	if err := joinConsumers(consumers, errs); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for i, k := range all {
		running.Go(func() {
			if errs[i] = c.runConsumer(ctx, k); errs[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	return joinConsumers(consumers, errs)
}

// joinConsumers joins the errors of consumers, each with its queue; nil if there are none.
func joinConsumers(consumers []Consumer, errs []error) error {
	var all []error
	for i, err := range errs {
		if err != nil {
			all = append(all, &ConsumeError{consumers[i].Queue, err})
		}
	}
	return errors.Join(all...)
}

// runConsumer runs a consumer to its end.
func (c *Client) runConsumer(ctx context.Context, k *consumer) error {
	if err := c.startConsuming(k); err != nil {
		return err
	}
	defer c.endConsuming(k)
	return k.run(ctx)
}
