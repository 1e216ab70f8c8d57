package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

func (c *Core) store() (*taskview.Store, error) {
	if c.cfg.Store == nil {
		return nil, fmt.Errorf("%w: this process has no task database", ErrUnavailable)
	}
	return c.cfg.Store, nil
}

func (c *Core) source(ctx context.Context) (status.Source, error) {
	if c.cfg.Broker == nil {
		return status.Source{}, fmt.Errorf("%w: this process is not connected to a broker", ErrUnavailable)
	}
	src, err := c.cfg.Broker(ctx)
	src.Broker.Hasty = true // a user is waiting for the page, which is refreshed anyway
	return src, ofBroker(err)
}

// blind returns a source whose connections to the broker fail with err.
func blind(err error) status.Source {
	var src status.Source
	src.Broker.Dial = func(context.Context) (*amqp.Connection, error) { return nil, err }
	return src
}

const (
	answering = 3 * time.Second  // the timeout of a check that the database answers at all
	slowest   = 20 * time.Second // the timeout of the queries of one page or request
)

// answers returns nil if the database answers, or if there is no database.
func (c *Core) answers(ctx context.Context) error {
	if c.cfg.Store == nil {
		return nil
	}
	return c.cfg.Store.Ping(ctx, answering)
}

// read calls do, which reads from the database, with a timeout. If the database does not answer, read returns an error
// without calling do.
func read[T any](ctx context.Context, c *Core, do func(context.Context) (T, error)) (T, error) {
	if err := c.answers(ctx); err != nil {
		var none T
		return none, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, slowest, errSlow)
	defer cancel()
	v, err := do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errSlow) {
		err = errSlow
	}
	return v, err
}

// readStore is like read, for a function that needs the store.
func readStore[T any](ctx context.Context, c *Core, do func(context.Context, *taskview.Store) (T, error)) (T, error) {
	s, err := c.store()
	if err != nil {
		var none T
		return none, err
	}
	return read(ctx, c, func(ctx context.Context) (T, error) { return do(ctx, s) })
}
