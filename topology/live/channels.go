package live

import (
	"context"
	"errors"
	"regexp"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// Conn opens channels. *amqp091.Connection implements it.
type Conn interface {
	Channel() (*amqp.Channel, error)
}

// session runs operations one after another on its own channel. It opens a new channel after each error, because most
// errors close the channel.
type session struct {
	conn Conn
	ch   *amqp.Channel
}

type outcome struct {
	ch  *amqp.Channel
	err error
}

// do runs one operation. The client library cannot interrupt an operation. When the context ends first, do returns
// and leaves the operation running until the broker answers or the connection ends. The channel is closed then.
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
				_ = ch.Close() // unusable now, and usually already closed by the broker
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
				_ = o.ch.Close() // no operation is running on it
			}
		}()
		return context.Cause(ctx)
	}
}

func (s *session) close() {
	if s.ch != nil {
		_ = s.ch.Close() // no operation is running on it
		s.ch = nil
	}
}

const (
	// maxChannels is the maximum number of channels used concurrently. The broker processes one operation per channel
	// at a time, and since 4.0 each operation waits for the metadata store, which commits several in one batch.
	maxChannels = 8
	// perChannel is the number of operations that justifies one more channel.
	perChannel = 16
)

// onChannels divides the operations 0 to n-1 into as many runs as justify a channel each. It calls work concurrently
// for each run, from the index from up to but not including to, with a session of its own.
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

// sideBySide runs the operations 0 to n-1 concurrently on several channels, and returns the error of each.
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

func declareExchange(ch *amqp.Channel, e topology.Exchange, noWait bool) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, e.Internal, noWait, table(e.Table()))
}

func declareQueue(ch *amqp.Channel, q topology.Queue, noWait bool) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, noWait, table(q.Table()))
	return err
}

func bind(ch *amqp.Channel, b topology.Binding, noWait bool) error {
	if b.ToExchange != "" {
		return ch.ExchangeBind(b.ToExchange, b.RoutingKey, b.Exchange, noWait, table(b.Arguments))
	}
	return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, noWait, table(b.Arguments))
}

// deleteQueue deletes a queue. With onCondition, the broker deletes it only if it is empty and has no consumers.
func deleteQueue(ctx context.Context, s *session, name string, onCondition bool) (messages int64, err error) {
	err = s.do(ctx, func(ch *amqp.Channel) error {
		n, err := ch.QueueDelete(name, onCondition, onCondition, false)
		messages = int64(n)
		return err
	})
	return messages, err
}

func deleteExchange(ctx context.Context, s *session, name string, ifUnused bool) error {
	return s.do(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, ifUnused, false) })
}

// table converts nested tables to amqp.Table, the only table type that the client library encodes, and every int to
// an int64, because the library encodes an int in 32 bits.
func table(t map[string]any) amqp.Table {
	if t == nil {
		return nil
	}
	out := make(amqp.Table, len(t))
	for k, v := range t {
		out[k] = field(v)
	}
	return out
}

func field(v any) any {
	switch x := v.(type) {
	case int:
		return int64(x)
	case map[string]any:
		return table(x)
	case []any:
		list := make([]any, len(x))
		for i, e := range x {
			list[i] = field(e)
		}
		return list
	}
	return v
}

// These expressions match the broker's text for an object that exists with a different argument. The broker cuts the
// text at 255 bytes, so its end may be missing.
var (
	inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for (?:queue|exchange) '`)
	receivedText = regexp.MustCompile(`': received (.*) but current is (.*)$`)
	typedValue   = regexp.MustCompile(`^the value '(.*)' of type '(\w+)'$`)
	plainValue   = regexp.MustCompile(`^'(.*)'$`)
)

// brokerText is a value in the broker's notation.
type brokerText string

// parseInequivalent reads a Mismatch from the error of a declaration; wanted is the table that was declared.
func parseInequivalent(err error, wanted map[string]any) (argument.Mismatch, bool) {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered || e.Code != amqp.PreconditionFailed {
		return argument.Mismatch{}, false
	}
	arg := inequivalent.FindStringSubmatch(e.Reason)
	if arg == nil {
		return argument.Mismatch{}, false
	}
	m := argument.Mismatch{Argument: arg[1], Have: brokerText("another value")}
	values := receivedText.FindStringSubmatch(e.Reason)
	if values != nil {
		m.Want, m.Have = brokerValue(values[1]), brokerValue(values[2])
	}
	want, known := wanted[m.Argument]
	_, text := want.(string)
	if text && values != nil || m.Argument == "type" { // type of an exchange; its other properties are booleans
		m.Want, m.Have = plainText(m.Want), plainText(m.Have)
	}
	if known {
		m.Want = want
	}
	return m, true
}

func plainText(v any) any {
	if text, ok := v.(brokerText); ok {
		return string(text)
	}
	return v
}

func brokerValue(text string) any {
	if text == "none" {
		return nil
	}
	if typed := typedValue.FindStringSubmatch(text); typed != nil {
		if typed[2] == "longstr" {
			return typed[1]
		}
		return brokerText(typed[1])
	}
	if plain := plainValue.FindStringSubmatch(text); plain != nil {
		return brokerText(plain[1])
	}
	return brokerText(text)
}
