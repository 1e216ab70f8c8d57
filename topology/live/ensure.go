package live

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Ensure is a faster Apply for many processes that often start with the same topology. If everything exists, it finds
// that out in two round trips and declares nothing. Otherwise one process declares while the others wait. It does not
// use the Inspector.
//
// A topology counts as complete if all its exchanges and queues exist, and its live.DeclaredExchange, which is
// declared after everything else. Ensure does not notice if a single binding was deleted since then. Apply creates
// such a binding again.
func (b Broker) Ensure(ctx context.Context, want topology.Topology, opts ApplyOptions) error {
	b.Inspector = nil
	opts.locked = true
	opts.Prefix = cmp.Or(opts.Prefix, topology.DefaultPrefix)
	s, declared := &session{conn: b.Conn}, DeclaredExchange(opts.Prefix, want)
	defer func() { go s.close() }() // need not wait for the answer
	unlock, err := lockUnless(ctx, b.Conn, opts, func() (bool, error) { return isThere(ctx, s, want, declared) })
	if err != nil || unlock == nil {
		return err
	}
	defer unlock()
	if _, err := b.Apply(ctx, want, opts); err != nil {
		return err
	}
	return b.mark(ctx, declared)
}

// isThere reports whether a topology is complete. It checks the object that is declared last first, and waits for
// that answer. Without the topology the first check usually fails and closes the channel. amqp091 may send more
// operations on a channel that the broker has closed, and the broker then ends the connection. If only a part of the
// topology is missing, this can still happen. A client that has lost a connection to Ensure should use Apply on the
// next one.
func isThere(ctx context.Context, s *session, t topology.Topology, declared string) (bool, error) {
	last := func(ch *amqp.Channel) error { return exchangeExists(ch, declared, false) }
	all := func(ch *amqp.Channel) error {
		return fenced(ch, func() error { // if everything exists, only the last operation is answered
			for _, e := range t.Exchanges {
				if err := exchangeExists(ch, e.Name, true); err != nil {
					return err
				}
			}
			for _, q := range t.Queues {
				if _, err := ch.QueueDeclarePassive(q.Name, true, false, false, true, nil); err != nil {
					return err
				}
			}
			return last(ch)
		})
	}
	for _, ask := range []func(ch *amqp.Channel) error{last, all} {
		switch err := s.do(ctx, ask); {
		case err == nil:
		case isConnectionLost(err):
			return false, err
		default:
			return false, nil
		}
	}
	return true, nil
}

func exchangeExists(ch *amqp.Channel, name string, noWait bool) error {
	return ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, noWait, nil)
}

// MarkDeclared declares the live.DeclaredExchange of a topology that has been applied.
func (b Broker) MarkDeclared(ctx context.Context, prefix string, t topology.Topology) error {
	return b.mark(ctx, DeclaredExchange(prefix, t))
}

func (b Broker) mark(ctx context.Context, declared string) error {
	s := &session{conn: b.Conn}
	defer s.close()
	e := topology.Exchange{Name: declared, Kind: amqp.ExchangeFanout}
	if err := s.do(ctx, func(ch *amqp.Channel) error { return declareExchange(ch, e, false) }); err != nil {
		return objectError(topology.KindExchange, e.Name, "declare", e.Table(), err)
	}
	return nil
}

// Verify checks whether a topology was declared. It is for clients that may not declare objects. It looks for the
// live.DeclaredExchange, and if that is missing, for the topology's exchanges. RabbitMQ 4.3 and later show an
// exchange only to users with some permission on it, and Verify assumes that an exchange exists if it may not see it.
// If other exchanges do not exist, the error is a *MissingError.
func (b Broker) Verify(ctx context.Context, prefix string, t topology.Topology) error {
	s := &session{conn: b.Conn}
	defer s.close()
	err := lookForExchange(ctx, s, DeclaredExchange(prefix, t))
	if _, missing := errors.AsType[*ObjectError](err); missing {
		return b.VerifyExchanges(ctx, t)
	}
	return err
}

// VerifyExchanges is like Verify, but does not look for the live.DeclaredExchange. Use it after an object has turned
// out to be missing.
func (b Broker) VerifyExchanges(ctx context.Context, t topology.Topology) error {
	answers := sideBySide(b.Conn, len(t.Exchanges), func(s *session, i int) error {
		return lookForExchange(ctx, s, t.Exchanges[i].Name)
	})
	missing := &MissingError{Total: len(t.Exchanges)}
	for i, err := range answers {
		switch {
		case err == nil, isCode(err, amqp.AccessRefused):
		case isCode(err, amqp.NotFound):
			missing.Exchanges, missing.Err = append(missing.Exchanges, t.Exchanges[i].Name), err
		default:
			return err
		}
	}
	if len(missing.Exchanges) == 0 {
		return nil
	}
	return missing
}

// MissingError lists the exchanges of a topology that do not exist.
type MissingError struct {
	Exchanges []string
	Total     int   // number of exchanges in the topology
	Err       error // the broker's answer for the last missing one, an *amqp091.Error (404)
}

func (e *MissingError) Error() string {
	const named = 3
	names := strings.Join(e.Exchanges[:min(len(e.Exchanges), named)], ", ")
	if more := len(e.Exchanges) - named; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%d of %d exchanges do not exist: %s", len(e.Exchanges), e.Total, names)
}

// Unwrap returns the broker's answer.
func (e *MissingError) Unwrap() error { return e.Err }

func lookForExchange(ctx context.Context, s *session, name string) error {
	err := s.do(ctx, func(ch *amqp.Channel) error { return exchangeExists(ch, name, false) })
	if isCode(err, amqp.NotFound) || isCode(err, amqp.AccessRefused) {
		return &ObjectError{Kind: topology.KindExchange, Name: name, Op: "look for", Err: err}
	}
	return err
}

// DeclaredExchange returns the name of the exchange that marks a topology as completely declared. Nothing is bound to
// it.
//
// The name contains a hash of the exchanges, queues and bindings with all their arguments. Their order does not
// matter.
func DeclaredExchange(prefix string, t topology.Topology) string {
	var lines []string
	line := func(v any) {
		text, err := json.Marshal(v) // Marshal sorts the keys of maps
		if err != nil {
			text = fmt.Append(nil, v)
		}
		lines = append(lines, string(text))
	}
	for _, e := range t.Exchanges {
		line([]any{topology.KindExchange, e.Name, e.Kind, e.AutoDelete, e.Internal, e.Table()})
	}
	for _, q := range t.Queues {
		line([]any{topology.KindQueue, q.Name, q.Table()})
	}
	for _, b := range t.Bindings {
		line([]any{topology.KindBinding, b.Exchange, b.Queue, b.ToExchange, b.RoutingKey, b.Arguments})
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(lines), "\n")))
	return naming.DeclaredExchange(prefix) + hex.EncodeToString(sum[:12])
}
