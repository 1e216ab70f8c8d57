// Package channels runs operations on a broker over AMQP channels, either one after another on one channel or
// concurrently on several. Package internal/live and the removal of layouts share it.
package channels

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Conn opens channels. *amqp091.Connection implements it.
type Conn interface {
	Channel() (*amqp.Channel, error)
}

// Session runs operations one after another on its own channel. It opens a new channel after each error, because most
// errors close the channel.
type Session struct {
	conn Conn
	ch   *amqp.Channel
}

// New returns a session on a connection. It opens its channel with the first operation.
func New(conn Conn) *Session { return &Session{conn: conn} }

type outcome struct {
	ch  *amqp.Channel
	err error
}

// Do runs one operation. The client library cannot interrupt an operation. If the context ends first, Do returns and
// leaves the operation running until the broker answers or the connection closes, and then closes the channel. An
// operation must therefore not write to the caller's variables. Use Ask for an operation that returns a value.
func (s *Session) Do(ctx context.Context, op func(*amqp.Channel) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ch := s.ch
	s.ch = nil
	done := make(chan outcome, 1)
	go func() {
		var err error
		if ch == nil {
			ch, err = Open(s.conn)
		}
		if err == nil {
			if err = op(ch); err != nil {
				_ = ch.Close() // the channel is unusable now, and usually the broker has already closed it
			}
		}
		done <- outcome{ch, Advised(err)}
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
				_ = o.ch.Close() // an error does not matter, because no operation is running on the channel
			}
		}()
		return context.Cause(ctx)
	}
}

// Ask runs one operation as Session.Do does, and returns its value. The value is zero if the operation failed or was
// left running.
func Ask[T any](ctx context.Context, s *Session, op func(*amqp.Channel) (T, error)) (T, error) {
	answer := make(chan T, 1)
	err := s.Do(ctx, func(ch *amqp.Channel) error {
		v, err := op(ch)
		if err == nil {
			answer <- v
		}
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return <-answer, nil
}

// Close closes the channel.
func (s *Session) Close() {
	if s.ch != nil {
		_ = s.ch.Close() // an error does not matter, because no operation is running on the channel
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

// OnChannels divides the operations 0 to n-1 into runs, one for each channel, and calls work concurrently for each run.
// A run contains the operations with index >= from and < to, and has its own session.
func OnChannels(conn Conn, n int, work func(s *Session, from, to int)) {
	channels := min(maxChannels, (n+perChannel-1)/perChannel)
	var wg sync.WaitGroup
	for c := range channels {
		wg.Go(func() {
			s := New(conn)
			defer s.Close()
			work(s, n*c/channels, n*(c+1)/channels)
		})
	}
	wg.Wait()
}

// SideBySide runs the operations 0 to n-1 concurrently on several channels, and returns the error of each.
func SideBySide(conn Conn, n int, op func(s *Session, i int) error) []error {
	errs := make([]error, n)
	OnChannels(conn, n, func(s *Session, from, to int) {
		for i := from; i < to; i++ {
			errs[i] = op(s, i)
		}
	})
	return errs
}

// LookAt inspects objects concurrently. It returns the existing objects by name, and an error (or nil) for each wanted
// object.
func LookAt[W, F any](conn Conn, wanted []W, look func(s *Session, w W) (name string, found *F, err error)) (map[string]F, []error) {
	found, names := make([]*F, len(wanted)), make([]string, len(wanted))
	errs := SideBySide(conn, len(wanted), func(s *Session, i int) (err error) {
		names[i], found[i], err = look(s, wanted[i])
		return err
	})
	there := map[string]F{}
	for i, f := range found {
		if f != nil {
			there[names[i]] = *f
		}
	}
	return there, errs
}

// IsCode reports whether the broker refused an operation with this reply code.
func IsCode(err error, code int) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == code
}

// IsForbidden reports whether the user lacks a permission. The reply code alone does not show that, because the broker
// uses the same code if another client consumes from the queue exclusively.
func IsForbidden(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.AccessRefused && strings.Contains(e.Reason, "access to ")
}

// NeedsPermission adds the name of the missing permission, "read" or "configure", to an error with which the broker
// refused an operation on a queue. RabbitMQ before 3.11 does not name the permission itself. Errors with another cause
// are returned unchanged.
func NeedsPermission(permission string, err error) error {
	if !IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w; the user needs the permission to %s the queue, see docs/permissions.md", err, permission)
}

// IsNameHeld reports whether a quorum queue could not be declared because its members found no leader. On a busy
// broker, a single attempt may fail for this reason. Every attempt fails if the process of an earlier queue still holds
// the name, for example because that queue failed while it was starting.
func IsNameHeld(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.InternalError && strings.Contains(e.Reason, "cluster_not_formed")
}

// NameHeldAdvice says what to do about an error for which IsNameHeld returns true.
const NameHeldAdvice = `if this happens each time, the process of an earlier queue still has the name; docs/operations.md, "A queue without a process", explains how to free the name`

// DeclareExchange declares an exchange. With noWait, it does not wait for the broker's answer.
func DeclareExchange(ch *amqp.Channel, e topology.Exchange, noWait bool) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, e.Internal, noWait, Table(e.Table()))
}

// DeclareQueue declares a queue. With noWait, it does not wait for the broker's answer.
func DeclareQueue(ch *amqp.Channel, q topology.Queue, noWait bool) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, noWait, Table(q.Table()))
	return err
}

// Bind binds a queue or an exchange to the binding's source. With noWait, it does not wait for the broker's answer.
func Bind(ch *amqp.Channel, b topology.Binding, noWait bool) error {
	if b.ToExchange != "" {
		return ch.ExchangeBind(b.ToExchange, b.RoutingKey, b.Exchange, noWait, Table(b.Arguments))
	}
	return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, noWait, Table(b.Arguments))
}

// DeleteQueue deletes a queue. With onCondition, the broker deletes it only if it is empty and has no consumers.
func DeleteQueue(ctx context.Context, s *Session, name string, onCondition bool) (messages int64, err error) {
	return Ask(ctx, s, func(ch *amqp.Channel) (int64, error) {
		n, err := ch.QueueDelete(name, onCondition, onCondition, false)
		return int64(n), err
	})
}

// DeleteExchange deletes an exchange. With ifUnused, the broker deletes it only if nothing is bound to it.
func DeleteExchange(ctx context.Context, s *Session, name string, ifUnused bool) error {
	return s.Do(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, ifUnused, false) })
}

// Table converts nested tables to amqp.Table, the only table type that the client library encodes, and every int to
// an int64, because the library encodes an int in 32 bits.
func Table(t map[string]any) amqp.Table {
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
		return Table(x)
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

// brokerText is a value in the broker's notation. It has its own type, so that argument.Format does not put it in
// quotes.
type brokerText string

// Inequivalent reads a Mismatch from the error of a declaration. The parameter wanted is the table that was declared.
// Inequivalent returns false if the error has another cause.
func Inequivalent(err error, wanted map[string]any) (topology.Mismatch, bool) {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered || e.Code != amqp.PreconditionFailed {
		return topology.Mismatch{}, false
	}
	arg := inequivalent.FindStringSubmatch(e.Reason)
	if arg == nil {
		return topology.Mismatch{}, false
	}
	m := topology.Mismatch{Argument: arg[1], Have: brokerText("another value")}
	values := receivedText.FindStringSubmatch(e.Reason)
	if values != nil {
		m.Want, m.Have = brokerValue(values[1]), brokerValue(values[2])
	}
	want, known := wanted[m.Argument]
	_, text := want.(string)
	if text && values != nil || m.Argument == "type" { // the type of an exchange is text, and its other properties are booleans
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
