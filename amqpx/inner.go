package amqpx

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Internals returns the operations of the client that packages inspect and schedule use. Other modules cannot call it,
// because package inner is internal.
func (c *Client) Internals(inner.Access) inner.Client { return inside{c} }

// Internals returns the operations that package inspect can use with only a configuration, without a client. Other
// modules cannot call it, because package inner is internal.
func (c Config) Internals(inner.Access) inner.Config { return configured{c} }

// configured implements inner.Config.
type configured struct{ cfg Config }

func (c configured) Dial(ctx context.Context) (*amqp.Connection, error) {
	cfg := c.cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return wire.Dial(ctx, context.Background(), cfg.wire(), "")
}

func (c configured) Rehearse(conn *amqp.Connection) (func(context.Context, inner.Copy) error, error) {
	return rehearse(conn, c.cfg)
}

// inside implements inner.Client.
type inside struct{ c *Client }

func (s inside) Lead() time.Duration {
	longest := s.c.cfg.Lead
	for _, d := range s.c.cfg.Destinations {
		if d.Lead != nil {
			longest = max(longest, *d.Lead)
		}
	}
	return longest
}

func (s inside) Begin() (end func(), err error) { return s.c.consumers.Begin() }

func (s inside) Now() time.Time { return s.c.cfg.Now() }

func (s inside) Stopped() context.Context { return s.c.stop }

func (s inside) Forced() context.Context { return s.c.forced }

func (s inside) Dial(ctx context.Context) (*amqp.Connection, error) {
	return wire.Dial(ctx, s.c.over, s.c.cfg.wire(), "inspect")
}

func (s inside) Publishing(ctx context.Context, unblocked bool) (*wire.Session, error) {
	sess, err := s.c.pub.Wait(ctx, unblocked)
	if err != nil {
		return nil, err
	}
	return sess.Session.Session, nil
}

func (s inside) Declaring(ctx context.Context, f func(*amqp.Connection) error) error {
	sess, err := s.c.pub.Wait(ctx, false)
	if err != nil {
		return err
	}
	return s.c.decl.Do(ctx, sess.Session, f)
}

func (s inside) Pass(ctx context.Context, p inner.Copy) error {
	route := p.Route
	if p.Straight {
		route = straightTo(p.To)
	}
	return s.c.sendOne(ctx, passing(p), route)
}

func (s inside) Invalid(err error) (invalid, headers bool) {
	bad, ok := errors.AsType[*MessageError](err)
	return errors.Is(err, ErrMessage), ok && bad.Field == "Headers"
}

func (s inside) NewID() string { return newID(time.Now()) }

// passing converts a copy to a message.
func passing(p inner.Copy) Message {
	return Message{
		ID: p.MessageId, Queue: p.To.Queue, Exchange: p.To.Exchange, RoutingKey: p.To.RoutingKey,
		Delay: p.Delay, DeliverAt: p.DeliverAt, ClockOffset: p.ClockOffset, Attempt: p.Attempt, Version: p.Version, Created: p.Created,
		Body: p.Body, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, Type: p.Type,
		CorrelationID: p.CorrelationId, ReplyTo: p.ReplyTo, AppID: p.AppId, Priority: p.Priority, Headers: p.Headers,
		own: p.Own, as: p.As, userID: p.UserId, sent: p.Sent,
	}
}

// rehearsal checks, without publishing, whether copies could be sent. Its client has no connections.
type rehearsal struct {
	c  *Client
	on string // the broker's product and version

	mu     wait.Mutex // held while a check uses the channel
	ch     *wire.Channel
	asked  map[string]error // the result of ask for each checked destination; nil if messages can be sent to it
	routes int              // number of route queues that would be created
}

func rehearse(conn *amqp.Connection, cfg Config) (pass func(context.Context, inner.Copy) error, err error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	strategy, err := cfg.strategy()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, strategy: strategy}
	c.decl = declare.New(context.Background(), c.declaring(false))
	r := &rehearsal{mu: wait.NewMutex(), c: c, on: wire.Broker(conn), ch: &wire.Channel{Conn: conn}, asked: map[string]error{}}
	return r.pass, nil
}

// pass returns the error that inner.Client.Pass would return for a copy, if that can be determined without declaring or
// publishing anything.
func (r *rehearsal) pass(ctx context.Context, republished inner.Copy) error {
	m := passing(republished)
	p, err := r.c.prepare(&m, nil, r.c.cfg.Now())
	if err != nil {
		return err
	}
	if p.first.Hops > 0 {
		if err := priorityProblem(r.on, r.c.strategy, p.pub.Priority); err != nil {
			return err
		}
	}
	if err := r.mu.Lock(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	err, known := r.asked[p.dest.String()]
	if !known {
		err = r.ask(ctx, p.dest)
		r.asked[p.dest.String()] = err
	}
	return err
}

// ask asks the broker whether a message could be sent to a destination. If sending would create a route queue, ask
// counts it in routes.
func (r *rehearsal) ask(ctx context.Context, dest topology.Destination) error {
	route, err := r.c.decl.Rehearse(ctx, r.ch, dest, r.routes)
	if route {
		r.routes++
	}
	return err
}
