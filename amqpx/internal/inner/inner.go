// Package inner is the side of an amqpx.Client that package inspect works with and
// applications do not see. Package amqpx fills it in.
package inner

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Filled in by package amqpx, whose types these take and return.
var (
	// Of returns the inner side of an *amqpx.Client.
	Of func(client any) Client
	// Dial connects as Open does with an amqpx.Config, and declares nothing.
	Dial func(ctx context.Context, cfg any) (*amqp.Connection, error)
	// Rehearse returns what says with which error a client of an amqpx.Config would refuse
	// a message. It may be called by several goroutines.
	Rehearse func(conn *amqp.Connection, cfg any) (pass func(context.Context, Parcel) error, err error)
)

// Client is an *amqpx.Client.
type Client interface {
	// Begin counts a run for which Close waits, until end is called.
	Begin() (end func(), err error)
	// Now is the wall clock.
	Now() time.Time
	// Stopped ends when Close is called, Forced when it is to wait for nothing any more.
	Stopped() context.Context
	Forced() context.Context
	// Dial opens a connection for the run alone: the broker ends the connection that reads
	// from a queue whose process is gone, and consumers must keep theirs. The caller closes it.
	Dial(ctx context.Context) (*amqp.Connection, error)
	// Publishing waits for the connection to publish, one that is not blocked if that
	// is asked for.
	Publishing(ctx context.Context, unblocked bool) (*wire.Session, error)
	// Declaring runs f with a connection over which the broker may end it.
	Declaring(ctx context.Context, f func(*amqp.Connection) error) error
	// Pass sends a message on, as Send does.
	Pass(ctx context.Context, p Parcel) error
}

// Parcel is a message that was received, on its way to another place.
type Parcel struct {
	amqp.Publishing // of which As has some, and the client gives others

	To       topology.Destination
	Straight bool // past the strategy, without a delay

	DeliverAt   time.Time
	ClockOffset time.Duration
	Attempt     int
	Version     int64
	Created     time.Time
	Own         amqp.Table         // headers of rabbitdelay's own
	As          *header.Properties // that it keeps; nil for none
}
