package live

import (
	"context"
	"errors"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Conn opens channels; *amqp091.Connection is one.
type Conn interface {
	Channel() (*amqp.Channel, error)
}

// session runs operations one after another on a channel of its own, and opens
// a fresh one after each error, because most errors close the channel.
type session struct {
	conn Conn
	ch   *amqp.Channel
}

type outcome struct {
	ch  *amqp.Channel
	err error
}

// do runs one operation. The client library cannot interrupt one, so when the context ends first, the operation
// is left to end by itself (with the broker's answer or with the connection), and its channel is closed then.
func (s *session) do(ctx context.Context, op func(*amqp.Channel) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ch := s.ch
	s.ch = nil
	done := make(chan outcome, 1)
	go func() {
		var err error
		if ch == nil {
			ch, err = s.conn.Channel()
		}
		if err == nil {
			if err = op(ch); err != nil {
				_ = ch.Close() // of no use any more; usually the broker closed it
			}
		}
		done <- outcome{ch, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			s.ch = o.ch
		}
		return o.err
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				_ = o.ch.Close() // nothing is in flight on it
			}
		}()
		return context.Cause(ctx)
	}
}

func (s *session) close() {
	if s.ch != nil {
		_ = s.ch.Close() // nothing is in flight on it
		s.ch = nil
	}
}

const (
	// maxChannels is how many channels work side by side: the broker works on one operation per channel at a
	// time, and since 4.0 each waits for its metadata store, which takes several in one go.
	maxChannels = 8
	// perChannel is the least number of operations that is worth a channel.
	perChannel = 16
)

// onChannels divides operations 0 to n-1 into runs, as many as channels are worth
// it, and lets work do each run, from up to and without to, on a channel of its own.
func onChannels(conn Conn, n int, work func(s *session, from, to int)) {
	channels := min(maxChannels, (n+perChannel-1)/perChannel)
	var wg sync.WaitGroup
	for c := range channels {
		wg.Go(func() {
			s := &session{conn: conn}
			defer s.close()
			work(s, n*c/channels, n*(c+1)/channels)
		})
	}
	wg.Wait()
}

// sideBySide runs operations 0 to n-1 on several channels, and returns the error of each.
func sideBySide(conn Conn, n int, op func(s *session, i int) error) []error {
	errs := make([]error, n)
	onChannels(conn, n, func(s *session, from, to int) {
		for i := from; i < to; i++ {
			errs[i] = op(s, i)
		}
	})
	return errs
}

func isCode(err error, code int) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == code
}
