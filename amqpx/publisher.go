package amqpx

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/semaphore"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// publisher publishes on one connection. The broker refuses some messages by
// closing their channel, with everything unconfirmed on it, so not all share one:
// a way on which the broker has not yet taken a message is tried on a channel
// beside the shared one, and a message that may be the reason for a close gets one
// to itself.
type publisher struct {
	conn   *amqp.Connection
	room   int // for returns
	flow   *flow
	shared slot
	trial  slot
	alone  *semaphore.Weighted
}

// maxReturns bounds the returns that a channel buffers. The confirm after each
// return wakes a goroutine that drains them, so a few suffice.
const maxReturns = 1024

// maxAlone bounds the channels of messages that are published alone.
const maxAlone = 16

func newPublisher(conn *amqp.Connection, maxInFlight int, onStuck func([]string)) *publisher {
	return &publisher{
		conn: conn, room: min(maxInFlight, maxReturns), flow: newFlow(maxInFlight, onStuck),
		shared: newSlot(), trial: newSlot(), alone: semaphore.NewWeighted(maxAlone),
	}
}

// open opens the channel that the first message needs.
func (p *publisher) open(ctx context.Context) error {
	_, err := p.trial.get(ctx, p.conn, p.room)
	return err
}

// publication is a message on its way to its confirm.
type publication struct {
	dc    *amqp.DeferredConfirmation
	on    *confirmChannel
	key   returnKey
	size  int
	share share
	alone bool
}

// publish writes the message and takes the share over, which comes back with the
// outcome. An error means that nothing was written.
func (p *publisher) publish(ctx context.Context, s share, alone bool, r *topology.Route, msg amqp.Publishing) (publication, error) {
	x, err := p.write(ctx, s, alone, r, msg)
	if err != nil {
		p.flow.leave(s, false, false)
	}
	return x, err
}

func (p *publisher) write(ctx context.Context, s share, alone bool, r *topology.Route, msg amqp.Publishing) (publication, error) {
	on, err := p.channel(ctx, s.proven, alone)
	if err != nil {
		return publication{}, err
	}
	dc, err := on.ch.PublishWithDeferredConfirm(r.Exchange, r.RoutingKey, r.Mandatory, false, msg)
	if err != nil {
		if alone {
			p.end(on)
		}
		return publication{}, err
	}
	return publication{dc: dc, on: on, key: returnKey{msg.MessageId, r.Exchange, r.RoutingKey}, size: len(msg.Body), share: s, alone: alone}, nil
}

func (p *publisher) channel(ctx context.Context, proven, alone bool) (*confirmChannel, error) {
	switch {
	case alone:
		return p.ownChannel(ctx)
	case proven:
		return p.shared.get(ctx, p.conn, p.room)
	}
	return p.trial.get(ctx, p.conn, p.room)
}

func (p *publisher) ownChannel(ctx context.Context) (*confirmChannel, error) {
	if err := p.alone.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	opened, failed := make(chan *confirmChannel), make(chan error, 1)
	go func() {
		c, err := openConfirmChannel(p.conn, 1)
		if err != nil {
			p.alone.Release(1)
			failed <- err
			return
		}
		select {
		case opened <- c:
		case <-ctx.Done(): // nobody waits for it any more
			p.end(c)
		}
	}()
	select {
	case c := <-opened:
		return c, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// end closes the channel of a message that was alone, and does not wait: a broker
// that blocks the connection answers when the alarm is over.
func (p *publisher) end(on *confirmChannel) {
	go func() {
		_ = on.ch.Close()
		p.alone.Release(1)
	}()
}

// outcome waits for what becomes of a publication, until ctx ends, and gives its
// share back, in that case when the answer comes after all.
func (p *publisher) outcome(ctx context.Context, x *publication) outcome {
	select {
	case <-x.dc.Done():
	default:
		select {
		case <-x.dc.Done():
		case <-ctx.Done():
			late := *x
			go func() {
				<-late.dc.Done()
				p.finish(&late)
			}()
			return outcome{kind: expired, err: ctx.Err()}
		}
	}
	return p.finish(x)
}

// finish settles the books of a publication that has its answer.
func (p *publisher) finish(x *publication) outcome {
	o := x.answer()
	answered := o.kind != lost && o.kind != disturbed
	if o.kind == refused && o.code == amqp.AccessRefused {
		o.stands = p.flow.refused(x.share.way, o.err)
	}
	p.flow.leave(x.share, answered, o.kind == confirmed)
	if x.alone {
		p.end(x.on)
	}
	return o
}

// answer is what the broker has said of the publication.
func (x *publication) answer() outcome {
	reason, unroutable := x.on.takeReturn(x.key)
	switch {
	case unroutable:
		return outcome{kind: returned, err: fmt.Errorf("%w: %s (exchange %q, routing key %q)", ErrUnroutable, reason, x.key.exchange, x.key.key)}
	case x.dc.Acked():
		return outcome{kind: confirmed}
	case !x.on.ch.IsClosed():
		return outcome{kind: nacked, err: ErrNacked}
	}
	<-x.on.ended // for the reason, which comes at the same time
	return x.closed(x.on.err)
}

// closed tells what the end of the channel means for an unconfirmed message.
func (x *publication) closed(err error) outcome {
	ae, ok := errors.AsType[*amqp.Error](err)
	if !ok || !ae.Server || !ae.Recover {
		// The connection has ended. Where the broker ended it because of what it read
		// (and not because it stops, or the line broke), a message may be the reason.
		blames := ok && ae.Server && ae.Code != amqp.ConnectionForced
		return outcome{kind: lost, err: fmt.Errorf("connection ended before the confirm: %w", err), alone: x.alone, suspect: blames}
	}
	o := outcome{kind: disturbed, err: fmt.Errorf("channel closed: %w", err), code: ae.Code, alone: x.alone}
	named, mine := x.blamed(ae.Reason)
	switch {
	case x.alone, mine && !x.share.proven:
		o.kind = refused
	case mine:
		// The right to it was there: this message may have been taken before it went.
		o.suspect = true
	case !named:
		o.suspect, o.doubt = true, ae.Reason
	}
	return o
}

// blamed tells whether the broker's reason for closing the channel names a
// message, and whether that is this one.
func (x *publication) blamed(reason string) (named, mine bool) {
	if limit, ok := sizeLimit(reason); ok {
		return true, x.size > limit
	}
	exchange, ok := quotedAfter(reason, "exchange '")
	if !ok {
		return false, false
	}
	mine = exchange == x.key.exchange || x.key.exchange == "" && (exchange == "amq.default" || exchange == "")
	if key, ok := quotedAfter(reason, "topic '"); ok {
		mine = mine && key == x.key.key
	}
	return true, mine
}

// quotedAfter is what stands between the words given and the next quote; a reply
// text may be cut off before it.
func quotedAfter(text, words string) (string, bool) {
	_, rest, ok := strings.Cut(text, words)
	if !ok {
		return "", false
	}
	quoted, _, ok := strings.Cut(rest, "'")
	return quoted, ok
}

// sizeLimit is the largest body in bytes that the broker takes, when it closed
// the channel because of a larger one.
func sizeLimit(reason string) (limit int, ok bool) {
	_, text, found := strings.Cut(reason, "message size ")
	if !found {
		return 0, false
	}
	var size int
	if _, err := fmt.Sscanf(text, "%d is larger than max size %d", &size, &limit); err == nil {
		return limit, true
	}
	_, err := fmt.Sscanf(text, "%d is larger than configured max size %d", &size, &limit)
	return limit, err == nil
}
