package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// source is where a run takes its messages from.
type source interface {
	// begin returns how many messages there are.
	begin(ctx context.Context) (total int, err error)
	// take returns up to n further messages; none: that was all.
	take(ctx context.Context, n int) ([]*letter, error)
	// keep is called for a message that stays.
	keep(l *letter) error
	// acknowledge removes messages for good.
	acknowledge(round []*letter) error
	// end keeps what was taken and not looked at.
	end(left []*letter) error
}

// queueSource is a queue. What stays is held until the run ends, and then put back.
type queueSource struct {
	taker

	client *amqpx.Client
	r      *requeue // in whose report it fills in what the queue costs

	conn      *amqp.Connection // of the run alone
	limit     int64            // how often a message may be put back
	consumers int              // of others

	copies       *amqp.Channel // nil before the first copy
	returned     chan amqp.Return
	copiesClosed chan *amqp.Error
	endCopies    func()
}

// begin looks at the queue and opens the channel.
func (q *queueSource) begin(ctx context.Context) (total int, err error) {
	info, err := q.client.QueueInfo(ctx, q.queue) // it waits for a broker
	if err != nil {
		return 0, err
	}
	if q.conn, err = q.r.c.Dial(ctx); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			q.hangUp()
		}
	}()
	q.limit, q.endCopies, q.consumers = math.MaxInt64, func() {}, info.Consumers
	if info.Ready > 0 {
		err = q.learnLimit(ctx)
	} else if info.Consumers == 0 {
		err = q.r.c.Declaring(ctx, func(conn *amqp.Connection) error { return answers(ctx, conn, q.queue) })
	}
	if err != nil {
		return info.Ready, err
	}
	q.ch, err = wait.Value(ctx, q.conn.Channel)
	return info.Ready, err
}

// hangUp closes the run's connection.
func (q *queueSource) hangUp() {
	_ = wait.Done(q.forced, func() error { wire.CloseConn(q.conn); return nil })
}

// answers returns a *live.UnavailableError for a queue without a leader, which the broker counts as empty.
func answers(ctx context.Context, conn *amqp.Connection, queue string) error {
	why, err := live.Answers(ctx, conn, queue)
	if why != "" {
		return &live.UnavailableError{Queue: queue, Reason: why}
	}
	return err
}

// learnLimit finds out how often the queue lets a message be put back. Since RabbitMQ 4.3 that does not count.
// Before, a quorum queue takes the lower of an argument and a policy, and AMQP shows no policy: a declaration
// with the very argument succeeds under any. Without the management API only a classic queue is known to drop
// nothing.
func (q *queueSource) learnLimit(ctx context.Context) error {
	version := wire.Version(wire.Broker(q.conn))
	if version.AtLeast(4, 3, 0) {
		return nil
	}
	limit, err := returns(ctx, q.r.o.Management, q.queue, version)
	switch {
	case err == nil && limit >= topology.NoDeliveryLimit, err != nil && q.classic(ctx):
		return nil
	case err == nil:
		q.limit, q.r.rep.DeliveryLimit, q.r.rep.CountsDeliveries = limit, limit, true
	case ctx.Err() == nil && (q.r.o.DryRun || errors.Is(err, live.ErrStream)):
		return peekRefused(q.queue, err)
	default:
		q.limit, q.r.rep.DeliveryLimit, q.r.rep.CountsDeliveries = 0, -1, true
	}
	return ctx.Err()
}

// classic reports whether the queue is known to be a classic one: a declaration as a quorum queue is refused
// because of the type.
func (q *queueSource) classic(ctx context.Context) bool {
	ours := topology.Destination{Queue: "any", DeadLetter: q.queue}.Queues(topology.Quorum)[:1]
	other := ""
	err := q.r.c.Declaring(ctx, func(conn *amqp.Connection) (err error) {
		other, err = live.OtherType(ctx, conn, ours[0])
		return err
	})
	return err == nil && other != "" && other != live.TypeStream
}

func (q *queueSource) take(ctx context.Context, n int) ([]*letter, error) {
	taken, err := q.receive(ctx, n)
	q.r.rep.PutBack += len(taken) // unless it goes
	list := make([]*letter, len(taken))
	for i, raw := range taken {
		list[i] = &letter{raw: raw, DeadLetter: ReadDeadLetter(raw, q.queue, q.r.prefix)}
	}
	return list, err
}

// acknowledge takes messages off the queue, and returns when the channel has read it: nothing else is sent before.
func (q *queueSource) acknowledge(round []*letter) error {
	for _, l := range round {
		if err := q.remove(&l.raw); err != nil {
			return fmt.Errorf("message %s was %s and could not be acknowledged, so that it may come twice: %w", l.ID, l.fate.Outcome, err)
		}
		q.r.rep.PutBack--
	}
	return q.ask(q.forced, func() error { return q.ch.Qos(1, 0, false) }) // its answer comes after the acknowledgements
}

// keep makes sure that a message which stays can be put back: where the queue might drop it, a copy goes to the
// queue's end instead.
func (q *queueSource) keep(l *letter) error {
	count, _ := header.Integer(l.raw.Headers, header.Deliveries)
	if !q.r.rep.CountsDeliveries || count+1 < q.limit {
		return nil
	}
	if err := q.copyBack(&l.raw); err != nil {
		return fmt.Errorf("message %s was delivered %d times and may be dropped when it is put back; a copy could not be made: %w", l.raw.MessageId, count+1, err)
	}
	if err := q.remove(&l.raw); err != nil {
		return err
	}
	q.r.rep.Moved++
	q.r.rep.PutBack--
	return nil
}

// copyHeaders are the headers of a message as its copy has them. By CC the broker would route the copy to other
// queues too, so that is carried.
func copyHeaders(raw *amqp.Delivery) amqp.Table {
	if _, ok := raw.Headers[header.CC]; !ok {
		return raw.Headers
	}
	h := maps.Clone(raw.Headers)
	delete(h, header.CC)
	p := header.Of(raw)
	h[header.Carried] = p.Carried()
	return h
}

// copyBack publishes a message to the queue that it came from, as it is.
func (q *queueSource) copyBack(raw *amqp.Delivery) error {
	ctx, cancel := context.WithTimeout(q.forced, sendTimeout)
	defer cancel()
	if q.copies == nil || q.copies.IsClosed() {
		if err := q.openCopies(ctx); err != nil {
			return err
		}
	}
	userID, lost, err := q.r.users.of(ctx, raw)
	if err != nil {
		return err
	}
	var dc *amqp.DeferredConfirmation
	err = wait.Done(ctx, func() (err error) {
		dc, err = q.copies.PublishWithDeferredConfirm("", q.queue, true, false, amqp.Publishing{
			Headers: copyHeaders(raw), ContentType: raw.ContentType, ContentEncoding: raw.ContentEncoding, DeliveryMode: raw.DeliveryMode,
			Priority: raw.Priority, CorrelationId: raw.CorrelationId, ReplyTo: raw.ReplyTo, Expiration: raw.Expiration,
			MessageId: raw.MessageId, Timestamp: raw.Timestamp, Type: raw.Type, UserId: userID, AppId: raw.AppId, Body: raw.Body,
		})
		return err
	})
	if err != nil {
		return err
	}
	taken, err := dc.WaitContext(ctx)
	if err != nil {
		return fmt.Errorf("the broker has not confirmed it: %w", err)
	}
	select {
	case back, ok := <-q.returned:
		if ok {
			return fmt.Errorf("%w: %s", amqpx.ErrUnroutable, back.ReplyText)
		}
	default:
	}
	switch {
	case taken:
		q.r.rep.anonymous(raw.MessageId, lost)
		return nil
	case !q.copies.IsClosed():
		return amqpx.ErrNacked
	}
	return fmt.Errorf("connection ended before the confirm: %w", <-q.copiesClosed)
}

// openCopies opens the channel for copies, which the run keeps.
func (q *queueSource) openCopies(ctx context.Context) error {
	q.endCopies()
	sess, err := q.r.c.Publishing(ctx, true)
	if err != nil {
		return err
	}
	ch, err := sess.Conn.Channel()
	if err != nil {
		return err
	}
	q.copies, q.copiesClosed = ch, ch.NotifyClose(make(chan *amqp.Error, 1))
	q.returned, q.endCopies = ch.NotifyReturn(make(chan amqp.Return, 1)), func() { go func() { _ = ch.Close() }() }
	return ch.Confirm(false)
}

// end returns everything that was not acknowledged to the queue, in its order.
func (q *queueSource) end(left []*letter) error {
	defer q.hangUp()
	if q.ch == nil {
		return nil
	}
	defer q.endCopies()
	defer wire.CloseChannel(q.forced, q.ch)
	if q.ch.IsClosed() {
		return nil
	}
	var err error
	for len(left) > 0 && err == nil {
		err = q.keep(left[0])
		left = left[1:]
	}
	if err == nil && q.holds() {
		err = q.takeReturned()
	}
	back := q.putBack()
	if back == nil {
		back = q.settled(q.consumers)
	}
	return errors.Join(err, back)
}

// mostReturned bounds how many messages a run takes only to keep their order.
const mostReturned = 20_000

// takeReturned takes the rest of the messages that were put back at some time. A quorum queue has these before all
// others, and puts what comes back behind them: so they stay in order only together. Where the broker counts that,
// or puts back at the end, they are left alone.
func (q *queueSource) takeReturned() error {
	if q.r.rep.CountsDeliveries || wire.Version(wire.Broker(q.conn)).Before(4, 0, 0) {
		return nil
	}
	for end := q.took + mostReturned; q.again && q.took < end; {
		if more, err := q.take(q.forced, q.r.portions.next()); err != nil || len(more) == 0 {
			return err
		}
	}
	return nil
}

// savedSource is RequeueOptions.From. What stays is there all the same.
type savedSource struct {
	list   iter.Seq2[SavedMessage, error]
	prefix string

	next func() (SavedMessage, error, bool)
	stop func()
	read int // messages, in this pass
}

// begin reads all messages once, to find every mistake before anything is sent.
func (s *savedSource) begin(ctx context.Context) (total int, err error) {
	for _, err := range s.list {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, fmt.Errorf("nothing was sent: %w", err)
		}
		total++
	}
	s.next, s.stop = iter.Pull2(s.list)
	return total, nil
}

func (s *savedSource) take(ctx context.Context, n int) (list []*letter, err error) {
	for len(list) < n {
		if err := ctx.Err(); err != nil {
			return list, err
		}
		m, err, ok := s.next()
		if err != nil || !ok {
			return list, err
		}
		s.read++
		l := &letter{raw: m.Message, line: m.Line, edited: m.Edited, DeadLetter: ReadDeadLetter(m.Message, m.Queue, s.prefix)}
		if l.line == 0 {
			l.line = s.read
		}
		list = append(list, l)
	}
	return list, nil
}

func (s *savedSource) keep(*letter) error          { return nil }
func (s *savedSource) acknowledge([]*letter) error { return nil }

func (s *savedSource) end([]*letter) error {
	s.stop()
	return nil
}
