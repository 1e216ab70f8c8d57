// Package inner has the interfaces through which packages inspect and schedule use parts of an amqpx.Client and an
// amqpx.Config that are not for applications. Package consume also uses Copy, for the messages that replace received ones.
package inner

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Access is the parameter of the exported methods that return the interfaces of this package. Only packages below amqpx
// can name this type, and so call these methods.
type Access struct{}

// Config is the part of an amqpx.Config that package inspect uses.
type Config interface {
	// Dial opens a connection in the same way as amqpx.Open, and declares nothing.
	Dial(ctx context.Context) (*amqp.Connection, error)
	// Rehearse returns a function that checks a message without sending it. Its result is the error with which a client
	// with the configuration would refuse the message, or nil if the client would accept it. The function is safe for
	// concurrent use.
	Rehearse(conn *amqp.Connection) (pass func(context.Context, Copy) error, err error)
}

// Client is the part of an *amqpx.Client that packages inspect and schedule use.
type Client interface {
	// Lead returns the longest configured lead of any destination.
	Lead() time.Duration
	// Begin registers an operation. Close waits until the operation calls the returned function.
	Begin() (end func(), err error)
	// Now returns the time by the wall clock.
	Now() time.Time
	// Stopped returns a context that ends when Close is called. The context of Forced ends when Close stops waiting.
	Stopped() context.Context
	Forced() context.Context
	// Dial opens a separate connection for an operation, because the broker closes a connection that reads from a queue
	// whose process is gone, and the consumers' connection must stay open. The caller closes it.
	Dial(ctx context.Context) (*amqp.Connection, error)
	// Publishing waits for the publishing connection. If unblocked is true, it also waits until the broker does not
	// block that connection.
	Publishing(ctx context.Context, unblocked bool) (*wire.Session, error)
	// Declaring runs f with a connection that the broker may close in reply to the requests in f.
	Declaring(ctx context.Context, f func(*amqp.Connection) error) error
	// Pass publishes a message, and returns nil when the broker has confirmed it, as amqpx.Client.Send does.
	Pass(ctx context.Context, m Copy) error
}

// Copy is the message that is published in place of a received one, for example to forward, requeue, retry or
// dead-letter it.
type Copy struct {
	amqp.Publishing // some properties come from As instead, and others from the client

	To       topology.Destination
	Straight bool            // skip the strategy, and send without a delay
	Route    *topology.Route // a route that the caller has chosen; nil for the strategy's route

	Delay       time.Duration // instead of DeliverAt
	DeliverAt   time.Time
	ClockOffset time.Duration
	Attempt     int
	Version     int64
	Created     time.Time
	Sent        time.Time          // the timestamp to publish with; zero for the current time
	Own         amqp.Table         // rabbitdelay's own headers
	As          *header.Properties // properties that the message keeps; nil if there are none
}
