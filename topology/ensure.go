package topology

import (
	"cmp"
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Ensure is Apply for many processes that start with the same topology, and start
// often: where all is there, it finds that out in two round trips and declares
// nothing, and of those that find it missing one declares while the others wait.
// Apply's options hold, but for the Inspector.
//
// A topology counts as there when its DeclaredExchange is, which is declared after
// everything else, and all exchanges and queues. Somebody who has deleted a single
// binding since goes unnoticed; Apply makes it again.
func Ensure(ctx context.Context, conn Conn, want Topology, opts ApplyOptions) error {
	opts.Inspector, opts.locked = nil, true
	opts.Prefix = cmp.Or(opts.Prefix, DefaultPrefix)
	l := &look{s: &session{conn: conn}, want: want, declared: DeclaredExchange(opts.Prefix, want)}
	defer func() { go l.s.close() }() // nobody need wait for the answer
	unlock, err := lockUnless(ctx, conn, opts, func() (bool, error) { return l.there(ctx) })
	if err != nil || unlock == nil {
		return err
	}
	defer unlock()
	if _, err := Apply(ctx, conn, want, opts); err != nil {
		return err
	}
	return MarkDeclared(ctx, conn, opts.Prefix, want)
}

// look looks for a topology.
type look struct {
	s        *session
	want     Topology
	declared string
}

// there tells whether the topology is there. What is declared last is looked for
// first and with an answer: amqp091 may send more on a channel that the broker
// closes, over which the broker ends the connection, and without the topology that
// would be the rule. Where only a part is missing it still happens: whoever has lost
// a connection to Ensure had better Apply on the next.
func (l *look) there(ctx context.Context) (bool, error) {
	for _, ask := range []func(ch *amqp.Channel) error{
		func(ch *amqp.Channel) error { return exchangeExists(ch, l.declared, false) },
		func(ch *amqp.Channel) error { return lookFor(ch, l.want, l.declared) },
	} {
		err := l.s.do(ctx, ask)
		if _, answered := errors.AsType[*amqp.Error](err); answered && !isConnectionLost(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// lookFor finds out whether all exchanges and queues of a topology, and another
// exchange, are there. Only the last question is answered when they are.
func lookFor(ch *amqp.Channel, t Topology, last string) error {
	return fenced(ch, func() error {
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
		return exchangeExists(ch, last, false)
	})
}

// exchangeExists asks for an exchange of any type.
func exchangeExists(ch *amqp.Channel, name string, noWait bool) error {
	return ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, noWait, nil)
}

// MarkDeclared declares the DeclaredExchange of a topology that was applied.
func MarkDeclared(ctx context.Context, conn Conn, prefix string, t Topology) error {
	s := &session{conn: conn}
	defer s.close()
	e := Exchange{Name: DeclaredExchange(prefix, t), Kind: amqp.ExchangeFanout}
	if err := s.do(ctx, func(ch *amqp.Channel) error { return declareExchange(ch, e, false) }); err != nil {
		return objectError(KindExchange, e.Name, "declare", e.Table(), err)
	}
	return nil
}

// Verify finds out, for a client that may not declare, whether a topology was
// declared: by its DeclaredExchange, or else by its exchanges. Those that a broker
// of version 4.3 or later does not let the user look at are taken for granted; it
// wants some right to an exchange for that. The error wraps an *ObjectError for
// each exchange that is not there.
func Verify(ctx context.Context, conn Conn, prefix string, t Topology) error {
	s := &session{conn: conn}
	defer s.close()
	switch err := lookForExchange(ctx, s, DeclaredExchange(prefix, t)); {
	case err == nil:
		return nil
	case !isObjectError(err):
		return err
	}
	return VerifyExchanges(ctx, conn, t)
}

// VerifyExchanges is Verify without a look at the DeclaredExchange: something has
// turned out to be missing.
func VerifyExchanges(ctx context.Context, conn Conn, t Topology) error {
	errs := sideBySide(conn, len(t.Exchanges), func(s *session, i int) error {
		err := lookForExchange(ctx, s, t.Exchanges[i].Name)
		if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.AccessRefused {
			return nil
		}
		return err
	})
	return errors.Join(errs...)
}

func lookForExchange(ctx context.Context, s *session, name string) error {
	err := s.do(ctx, func(ch *amqp.Channel) error { return exchangeExists(ch, name, false) })
	if e, ok := errors.AsType[*amqp.Error](err); ok && (e.Code == amqp.NotFound || e.Code == amqp.AccessRefused) {
		return &ObjectError{Kind: KindExchange, Name: name, Op: "look for", Err: err}
	}
	return err
}

func isObjectError(err error) bool {
	_, ok := errors.AsType[*ObjectError](err)
	return ok
}
