package wire

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Ending records why a connection ended. A request that is waiting or starts when the connection ends may get only
// amqp091.ErrClosed from the client library, because the broker reports the reason once per connection.
type Ending struct {
	conn *amqp.Connection
	over chan struct{} // closed when the connection has ended
	why  *amqp.Error   // set before over is closed; nil if the client closed the connection
}

// Watch returns an Ending that will record why the connection ends.
func Watch(conn *amqp.Connection) *Ending {
	e := &Ending{conn: conn, over: make(chan struct{})}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		defer close(e.over)
		e.why = <-closed
	}()
	return e
}

// Explain replaces an amqp091.ErrClosed by the reason why the connection ended, and returns any other error unchanged.
// If another request caused the end, the reason is only part of the text, so that the request that failed is not
// blamed.
func (e *Ending) Explain(err error) error {
	if !errors.Is(err, amqp.ErrClosed) || !e.conn.IsClosed() {
		return err
	}
	<-e.over
	switch {
	case e.why == nil:
		return err
	case EndsConnection(e.why):
		return fmt.Errorf("%w; the broker has closed the connection: %s", err, e.why.Reason)
	}
	return fmt.Errorf("connection closed: %w", e.why)
}
