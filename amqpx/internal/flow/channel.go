package flow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// confirmChannel is a channel in confirm mode on which many goroutines publish. A returned message is matched with its
// publication before the confirm counts as success.
type confirmChannel struct {
	ch    *amqp.Channel
	ended chan struct{} // closed after the AMQP channel was closed and err is set
	err   error

	uses atomic.Int64 // publications without an answer so far
	left atomic.Bool  // no further publications are accepted

	mu       sync.Mutex
	returns  chan amqp.Return               // amqp091's reader adds returns before it resolves the confirm
	returned map[returnKey]returnedMessages // read from returns but not yet matched
}

type returnKey struct{ id, exchange, key string }

type returnedMessages struct {
	reason string // the broker's reply text
	count  int    // how many identical messages were returned, such as one id published twice
}

// openConfirmChannel opens a channel in confirm mode. The parameter buffer is the number of returns that can be
// buffered before the receiver of a confirm reads them.
func openConfirmChannel(conn *amqp.Connection, buffer int) (*confirmChannel, error) {
	ch, err := channels.Open(conn)
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm.select: %w", err)
	}
	c := &confirmChannel{
		ch:       ch,
		ended:    make(chan struct{}),
		returns:  ch.NotifyReturn(make(chan amqp.Return, buffer+1)),
		returned: map[returnKey]returnedMessages{},
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		c.err = errors.New("channel closed")
		if err := <-closed; err != nil {
			c.err = err
		}
		close(c.ended)
	}()
	return c, nil
}

// use registers a publication, and reports whether the channel still accepts it. If so, renew does not close the
// channel before the matching unuse.
func (c *confirmChannel) use() bool {
	c.uses.Add(1)
	if c.left.Load() {
		c.unuse()
		return false
	}
	return true
}

func (c *confirmChannel) unuse() {
	if c.uses.Add(-1) == 0 {
		c.closeLeft()
	}
}

// closeLeft closes a channel that is no longer used, once all its messages have been answered.
func (c *confirmChannel) closeLeft() {
	if c.left.Load() && c.uses.Load() == 0 {
		go func() { _ = c.ch.Close() }()
	}
}

// takeReturn matches a returned message with its publication. amqp091's reader puts a return into the Go channel before
// it resolves the confirm, so after the confirm the return, if any, is either in the channel or in the map.
func (c *confirmChannel) takeReturn(k returnKey) (reason string, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		select {
		case r, ok := <-c.returns:
			if ok {
				rk := returnKey{r.MessageId, r.Exchange, r.RoutingKey}
				c.returned[rk] = returnedMessages{r.ReplyText, c.returned[rk].count + 1}
				continue
			}
		default:
		}
		break
	}
	r, found := c.returned[k]
	if !found {
		return "", false
	}
	if r.count--; r.count == 0 {
		delete(c.returned, k)
	} else {
		c.returned[k] = r
	}
	return r.reason, true
}

// slot holds a channel, and opens a new one after the broker has closed it.
type slot struct {
	mu  wait.Mutex // held while a channel is being opened
	cur atomic.Pointer[confirmChannel]
}

func newSlot() slot { return slot{mu: wait.NewMutex()} }

func (s *slot) get(ctx context.Context, conn *amqp.Connection, buffer int) (*confirmChannel, error) {
	if c := s.open(); c != nil {
		return c, nil
	}
	if err := s.mu.Lock(ctx); err != nil {
		return nil, err
	}
	if c := s.open(); c != nil {
		s.mu.Unlock()
		return c, nil
	}
	// Hold the lock until the broker has answered, even if the caller has stopped waiting.
	var c *confirmChannel
	opened := make(chan error, 1)
	go func() {
		defer s.mu.Unlock()
		var err error
		if c, err = openConfirmChannel(conn, buffer); err == nil {
			s.cur.Store(c)
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		return c, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// renew drops the channel, so that the next user opens a new one.
func (s *slot) renew() {
	if c := s.cur.Swap(nil); c != nil {
		c.left.Store(true)
		c.closeLeft()
	}
}

// open returns the channel, or nil if there is none or it is closed.
func (s *slot) open() *confirmChannel {
	if c := s.cur.Load(); c != nil && !c.ch.IsClosed() {
		return c
	}
	return nil
}
