package amqpx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/semaphore"
)

// pubChannel is a channel in confirm mode that many goroutines publish on. A
// window bounds what is unconfirmed; returns are matched with their message
// before its confirm counts as success.
type pubChannel struct {
	ch      *amqp.Channel
	window  *semaphore.Weighted
	minCost int64
	maxCost int64
	failed  chan struct{} // closed when the channel has ended

	mu       sync.Mutex
	returns  chan amqp.Return       // filled by amqp091's reader, at most one per message in flight
	returned map[returnKey]returned // those taken from the channel and not yet matched
	err      error
}

type returnKey struct{ id, exchange, key string }

type returned struct {
	reason string // the broker's reply text
	count  int    // of messages alike: one id published twice
}

// windowBytes is the body size up to which a message counts as one in
// Config.MaxInFlight.
const windowBytes = 16 << 10

func newPubChannel(conn *amqp.Connection, maxInFlight int) (*pubChannel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm.select: %w", err)
	}
	p := &pubChannel{
		ch:      ch,
		window:  semaphore.NewWeighted(int64(maxInFlight) * windowBytes),
		minCost: windowBytes,
		maxCost: int64(maxInFlight) * windowBytes,
		failed:  make(chan struct{}),
		// A return precedes its confirm, and the window bounds the unconfirmed:
		// the reader never waits for room here.
		returns:  ch.NotifyReturn(make(chan amqp.Return, maxInFlight+1)),
		returned: map[returnKey]returned{},
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		err := <-closed
		p.mu.Lock()
		if err != nil {
			p.err = fmt.Errorf("channel closed: %w", err)
		} else {
			p.err = errors.New("channel closed")
		}
		p.mu.Unlock()
		close(p.failed)
	}()
	return p, nil
}

func (p *pubChannel) closeErr() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// publication is a message on its way to its confirm.
type publication struct {
	dc   *amqp.DeferredConfirmation
	key  returnKey
	cost int64
}

func (p *pubChannel) cost(body []byte) int64 {
	return min(max(int64(len(body)), p.minCost), p.maxCost)
}

// publish writes the message; the caller holds cost of the window, which
// outcome gives back. An error means that nothing was written.
func (p *pubChannel) publish(exchange, key string, mandatory bool, msg amqp.Publishing, cost int64) (publication, error) {
	dc, err := p.ch.PublishWithDeferredConfirm(exchange, key, mandatory, false, msg)
	if err != nil {
		p.window.Release(cost)
		return publication{}, err
	}
	return publication{dc: dc, key: returnKey{msg.MessageId, exchange, key}, cost: cost}, nil
}

var errChannelEnded = errors.New("connection ended before the confirm")

// outcome waits for the confirm. It returns nil when the broker has the message
// in a queue; ErrNacked, ErrUnroutable: it has not; errChannelEnded or the
// context's error: unknown.
func (p *pubChannel) outcome(ctx context.Context, x publication) error {
	select {
	case <-x.dc.Done():
	default:
		select {
		case <-x.dc.Done():
		case <-ctx.Done():
			// The window's share is given back when the confirm comes after all.
			go func() {
				<-x.dc.Done()
				_, _ = p.takeReturn(x.key)
				p.window.Release(x.cost)
			}()
			return ctx.Err()
		}
	}
	reason, unroutable := p.takeReturn(x.key)
	p.window.Release(x.cost)
	switch {
	case unroutable:
		return fmt.Errorf("%w: %s (exchange %q, routing key %q)", ErrUnroutable, reason, x.key.exchange, x.key.key)
	case x.dc.Acked():
		return nil
	case p.ch.IsClosed():
		<-p.failed // for the reason, which comes at the same time
		return fmt.Errorf("%w: %w", errChannelEnded, p.closeErr())
	}
	return ErrNacked
}

// sizeLimit is the largest body in bytes that the broker takes, when err is about
// a channel which it closed because of a larger one.
func sizeLimit(err error) (limit int, ok bool) {
	if !errors.Is(err, errChannelEnded) || !isCode(err, amqp.PreconditionFailed) {
		return 0, false
	}
	ae, _ := errors.AsType[*amqp.Error](err)
	_, text, found := strings.Cut(ae.Reason, "message size ")
	if !found {
		return 0, false
	}
	var size int
	if _, err := fmt.Sscanf(text, "%d is larger than max size %d", &size, &limit); err == nil {
		return limit, true
	}
	_, err = fmt.Sscanf(text, "%d is larger than configured max size %d", &size, &limit)
	return limit, err == nil
}

// takeReturn matches a returned message with its publication. amqp091's reader
// puts a return into the channel before it resolves the confirm, so after the
// confirm the return, if any, is either in the channel or in the map.
func (p *pubChannel) takeReturn(k returnKey) (reason string, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		select {
		case r, ok := <-p.returns:
			if ok {
				rk := returnKey{r.MessageId, r.Exchange, r.RoutingKey}
				p.returned[rk] = returned{r.ReplyText, p.returned[rk].count + 1}
				continue
			}
		default:
		}
		break
	}
	r, found := p.returned[k]
	if !found {
		return "", false
	}
	if r.count--; r.count == 0 {
		delete(p.returned, k)
	} else {
		p.returned[k] = r
	}
	return r.reason, true
}
