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
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Ensure is a faster Apply for many processes that often start with the same topology. If everything exists, it finds
// that out in two round trips and declares nothing. Otherwise one process declares while the others wait. It does not
// use the Inspector.
//
// A topology counts as complete if all its exchanges and queues exist and its DeclaredExchange, which is declared after
// everything else, exists too. Ensure does not notice if a single binding was deleted from a complete topology. Apply
// creates such a binding again.
func (b Broker) Ensure(ctx context.Context, want topology.Topology, opts ApplyOptions) error {
	b.Inspector = nil
	opts.locked = true
	opts.Prefix = cmp.Or(opts.Prefix, topology.DefaultPrefix)
	s, declared := channels.New(b.Conn), DeclaredExchange(opts.Prefix, want)
	defer func() { go s.Close() }() // the caller need not wait until the channel is closed
	unlock, err := lockUnless(ctx, b.Conn, opts, func() (bool, error) { return isThere(ctx, s, want, declared) })
	if err != nil || unlock == nil {
		return err
	}
	defer unlock()
	if _, err := b.Apply(ctx, want, opts); err != nil {
		if errors.Is(err, topology.ErrQuota) {
			err = errors.Join(err, b.withdraw(ctx, opts.Prefix, want))
		}
		return err
	}
	return b.mark(ctx, declared)
}

// withdrawTimeout bounds withdraw, which also runs after the context has ended.
const withdrawTimeout = 30 * time.Second

// withdraw deletes the parts of a layout that were declared before the broker's limit on queues was reached. The caller
// holds the lock, and the layout was never declared completely, so no client uses it. withdraw keeps objects that other
// configurations may share, and queues that have messages or consumers.
func (b Broker) withdraw(ctx context.Context, prefix string, t topology.Topology) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	own := func(name string) bool {
		layout, ok := naming.LayoutOf(prefix, name)
		return ok && !layout.Ambiguous()
	}
	queues := channels.SideBySide(b.Conn, len(t.Queues), func(s *channels.Session, i int) error {
		name := t.Queues[i].Name
		if !own(name) {
			return nil
		}
		if q, err := channels.CountQueue(ctx, s, name); err != nil || q == nil || q.Unavailable != "" || q.Messages+q.Consumers > 0 {
			return err
		}
		_, err := channels.DeleteQueue(ctx, s, name, false)
		return objectFailed(topology.KindQueue, name, err)
	})
	exchanges := channels.SideBySide(b.Conn, len(t.Exchanges), func(s *channels.Session, i int) error {
		name := t.Exchanges[i].Name
		if !own(name) {
			return nil
		}
		err := channels.DeleteExchange(ctx, s, name, true)
		if channels.IsCode(err, amqp.PreconditionFailed) {
			return nil // keep the exchange, because it still has bindings
		}
		return objectFailed(topology.KindExchange, name, err)
	})
	return cmp.Or(cmp.Or(queues...), cmp.Or(exchanges...))
}

// isThere reports whether a topology is complete. It first checks only the object that is declared last, and waits for
// that answer. If the topology is missing, that check usually fails and closes the channel. More operations in the same
// pipeline would be dangerous: amqp091 may send them on the closed channel, and the broker then closes the connection.
// This can still happen if only a part of the topology is missing. Therefore a client that has lost a connection to
// Ensure should use Apply on the next one.
func isThere(ctx context.Context, s *channels.Session, t topology.Topology, declared string) (bool, error) {
	last := func(ch *amqp.Channel) error { return exchangeExists(ch, declared, false) }
	all := func(ch *amqp.Channel) error {
		return fenced(ch, func() error { // without errors, the broker answers only the last operation
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
		switch err := s.Do(ctx, ask); {
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

// MarkDeclared declares the DeclaredExchange of a topology that has been applied.
func (b Broker) MarkDeclared(ctx context.Context, prefix string, t topology.Topology) error {
	return b.mark(ctx, DeclaredExchange(prefix, t))
}

func (b Broker) mark(ctx context.Context, declared string) error {
	s := channels.New(b.Conn)
	defer s.Close()
	e := topology.Exchange{Name: declared, Kind: amqp.ExchangeFanout}
	if err := s.Do(ctx, func(ch *amqp.Channel) error { return channels.DeclareExchange(ch, e, false) }); err != nil {
		return objectError(topology.KindExchange, e.Name, "declare", e.Table(), err)
	}
	return nil
}

// Verify checks whether a topology was declared. It is for clients that may not declare objects. It checks for
// DeclaredExchange and, if that exchange is missing or hidden, for each exchange in the topology. RabbitMQ 4.3 and
// later show an exchange only to users with some permission on it, and Verify assumes that an exchange exists if the
// user is not allowed to see it. If an exchange that the user may see does not exist, Verify returns a *MissingError.
func (b Broker) Verify(ctx context.Context, prefix string, t topology.Topology) error {
	s := channels.New(b.Conn)
	defer s.Close()
	err := lookForExchange(ctx, s, DeclaredExchange(prefix, t))
	if _, missing := errors.AsType[*ObjectError](err); missing {
		return b.VerifyExchanges(ctx, t)
	}
	return err
}

// VerifyExchanges is like Verify, but does not check for DeclaredExchange. Use it after an object has turned out to be
// missing.
func (b Broker) VerifyExchanges(ctx context.Context, t topology.Topology) error {
	answers := channels.SideBySide(b.Conn, len(t.Exchanges), func(s *channels.Session, i int) error {
		return lookForExchange(ctx, s, t.Exchanges[i].Name)
	})
	missing := &MissingError{Total: len(t.Exchanges)}
	for i, err := range answers {
		switch {
		case err == nil, channels.IsCode(err, amqp.AccessRefused):
		case channels.IsCode(err, amqp.NotFound):
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
	Err       error // the error for the last missing one, which wraps the broker's *amqp091.Error (404)
}

func (e *MissingError) Error() string {
	const named = 3
	names := strings.Join(e.Exchanges[:min(len(e.Exchanges), named)], ", ")
	if more := len(e.Exchanges) - named; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%d of %d exchanges do not exist: %s", len(e.Exchanges), e.Total, names)
}

// Unwrap returns Err.
func (e *MissingError) Unwrap() error { return e.Err }

func lookForExchange(ctx context.Context, s *channels.Session, name string) error {
	err := s.Do(ctx, func(ch *amqp.Channel) error { return exchangeExists(ch, name, false) })
	if channels.IsCode(err, amqp.NotFound) || channels.IsCode(err, amqp.AccessRefused) {
		return &ObjectError{Kind: topology.KindExchange, Name: name, Op: "look for", Err: err}
	}
	return err
}

// DeclaredExchange returns the name of the exchange that shows that a topology was declared completely. Nothing is
// bound to it.
//
// The name contains a hash of the exchanges, queues and bindings with all their arguments. Their order does not
// matter.
func DeclaredExchange(prefix string, t topology.Topology) string {
	var lines []string
	line := func(v any) {
		text, err := json.Marshal(v) // equal values have equal texts, because Marshal sorts the keys of maps
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
