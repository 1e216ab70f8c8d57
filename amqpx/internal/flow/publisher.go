package flow

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/semaphore"
)

// Publisher publishes on one connection. The broker refuses some messages by closing their channel, with all
// unconfirmed messages on it. Therefore not all messages share one channel:
//
//   - Most messages are published on the shared channel.
//   - A route on which the broker has not yet accepted a message is tried on the trial channel.
//   - A message that may be the cause of a close gets a channel to itself. So does a message on an untested route to a
//     queue that has stopped confirming. On RabbitMQ 4.0 a channel waits up to half a minute for the leader of a quorum
//     queue that it has not used before, and blocks everything that is published on it after that.
type Publisher struct {
	Window *Window

	conn   *amqp.Connection
	buffer int // number of returns that a channel buffers
	shared slot
	trial  slot
	alone  *semaphore.Weighted
}

// maxReturns limits the returns that a channel buffers. The confirm after each return wakes a goroutine that drains the
// buffer, so it never contains many.
const maxReturns = 1024

// maxAlone limits the number of channels for messages that are published alone.
const maxAlone = 64

// NewPublisher returns a Publisher that allows at most maxInFlight unconfirmed messages. A message of more than 16 KiB
// counts as several. onStuck is called with the queues that have stopped confirming.
func NewPublisher(conn *amqp.Connection, maxInFlight int, onStuck func([]string)) *Publisher {
	p := &Publisher{
		conn: conn, buffer: min(maxInFlight, maxReturns),
		shared: newSlot(), trial: newSlot(), alone: semaphore.NewWeighted(maxAlone),
	}
	p.Window = newWindow(maxInFlight, func(queues []string) {
		p.trial.renew()
		onStuck(queues)
	})
	return p
}

// Open opens the trial channel, on which the first message is published.
func (p *Publisher) Open(ctx context.Context) error {
	_, err := p.trial.get(ctx, p.conn, p.buffer)
	return err
}

// Publication is a message that was published and is not yet confirmed.
type Publication struct {
	dc    *amqp.DeferredConfirmation
	on    *confirmChannel
	key   returnKey
	size  int
	share Share
	alone bool
}

// Alone reports whether the message has its channel to itself.
func (x *Publication) Alone() bool { return x.alone }

// Address is the exchange and routing key to which a message is published.
type Address struct {
	Exchange, RoutingKey string
	Mandatory            bool
}

// Publish writes a message and takes ownership of the share, which is released with the outcome. If alone is true, the
// message gets a channel to itself. An error means that nothing was written.
func (p *Publisher) Publish(ctx context.Context, s Share, alone bool, to Address, msg amqp.Publishing) (Publication, error) {
	alone = alone || s.probe
	on, err := p.channel(ctx, s.proven, alone)
	for err == nil && !on.use() {
		on, err = p.channel(ctx, s.proven, alone)
	}
	if err != nil {
		p.Window.GiveUp(s)
		return Publication{}, err
	}
	dc, err := on.ch.PublishWithDeferredConfirm(to.Exchange, to.RoutingKey, to.Mandatory, false, msg)
	if err != nil {
		on.unuse()
		if alone {
			p.closeOwn(on)
		}
		p.Window.GiveUp(s)
		return Publication{}, err
	}
	return Publication{dc: dc, on: on, key: returnKey{msg.MessageId, to.Exchange, to.RoutingKey}, size: len(msg.Body), share: s, alone: alone}, nil
}

func (p *Publisher) channel(ctx context.Context, proven, alone bool) (*confirmChannel, error) {
	switch {
	case alone:
		return p.ownChannel(ctx)
	case proven:
		return p.shared.get(ctx, p.conn, p.buffer)
	}
	return p.trial.get(ctx, p.conn, p.buffer)
}

func (p *Publisher) ownChannel(ctx context.Context) (*confirmChannel, error) {
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
		case <-ctx.Done(): // the caller no longer waits
			p.closeOwn(c)
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

// closeOwn closes the channel of a message that was alone. It does not wait, because a broker that blocks the
// connection answers only after the alarm.
func (p *Publisher) closeOwn(on *confirmChannel) {
	go func() {
		_ = on.ch.Close()
		p.alone.Release(1)
	}()
}

// Outcome waits for the outcome of a publication until ctx ends, and releases its share. If ctx ends first, the share
// is released when the answer arrives.
func (p *Publisher) Outcome(ctx context.Context, x *Publication) Outcome {
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
			return Outcome{Kind: Expired, Err: ctx.Err()}
		}
	}
	return p.finish(x)
}

// finish returns the outcome of a publication that has received its answer. It releases the share, and closes the
// channel if the message had one to itself.
func (p *Publisher) finish(x *Publication) Outcome {
	o := x.answer()
	if o.Kind == Refused && o.Code == amqp.AccessRefused {
		o.stands = p.Window.refused(x.share.route, o.Err)
	}
	said := notTaken
	switch o.Kind {
	case Confirmed:
		said = taken
	case Lost, Disturbed:
		said = silence
	}
	p.Window.leave(x.share, said)
	x.on.unuse()
	if x.alone {
		p.closeOwn(x.on)
	}
	return o
}

// answer returns the broker's answer for the publication.
func (x *Publication) answer() Outcome {
	reason, unroutable := x.on.takeReturn(x.key)
	switch {
	case unroutable:
		return Outcome{Kind: Returned, Err: fmt.Errorf("%w: %s (exchange %q, routing key %q)", ErrUnroutable, reason, x.key.exchange, x.key.key)}
	case x.dc.Acked():
		return Outcome{Kind: Confirmed}
	case !x.on.ch.IsClosed():
		return Outcome{Kind: Nacked, Err: ErrNacked}
	}
	<-x.on.ended // wait for the error, which is set at about the same time
	return x.closed(x.on.err)
}

// closed returns the outcome of an unconfirmed message whose channel was closed with err.
func (x *Publication) closed(err error) Outcome {
	ae, ok := errors.AsType[*amqp.Error](err)
	if !ok || !ae.Server || !ae.Recover {
		// The connection was closed or lost. If the broker closed it because of something that it read, and not because
		// it is stopping or the network failed, a message may be the cause.
		blames := ok && ae.Server && ae.Code != amqp.ConnectionForced
		return Outcome{Kind: Lost, Err: fmt.Errorf("connection lost before the confirm: %w", err), alone: x.alone, suspect: blames}
	}
	o := Outcome{Kind: Disturbed, Err: fmt.Errorf("channel closed: %w", err), Code: ae.Code, alone: x.alone}
	named, mine := x.blamed(ae.Reason)
	switch {
	case x.alone, mine && !x.share.proven:
		o.Kind = Refused
	case mine:
		// Earlier messages on the route were accepted, so the broker may also have accepted this one before the
		// permission was revoked.
		o.suspect = true
	case !named:
		o.suspect, o.doubt = true, ae.Reason
	}
	return o
}

// blamed reports whether the broker's reason for closing the channel names a message, and whether it is this one.
func (x *Publication) blamed(reason string) (named, mine bool) {
	if limit, ok := SizeLimit(reason); ok {
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

// quotedAfter returns the text between the given words and the next quote. It reports false if there is none, because a
// reply text may be truncated.
func quotedAfter(text, words string) (string, bool) {
	_, rest, ok := strings.Cut(text, words)
	if !ok {
		return "", false
	}
	quoted, _, ok := strings.Cut(rest, "'")
	return quoted, ok
}

// SizeLimit returns the largest body, in bytes, that the broker accepts. It parses the reply text of a channel that the
// broker closed because of a larger body.
func SizeLimit(reason string) (limit int, ok bool) {
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
