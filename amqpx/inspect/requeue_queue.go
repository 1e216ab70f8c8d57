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
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// source supplies the messages of a run.
type source interface {
	// begin prepares the source, and returns the number of its messages.
	begin(ctx context.Context) (total int, err error)
	// take returns up to n further messages; an empty result means that there are no more.
	take(ctx context.Context, n int) ([]*letter, error)
	// keep is called for a message that stays in the source.
	keep(l *letter) error
	// acknowledge removes messages for good.
	acknowledge(round []*letter) error
	// end releases the source. The messages in left were taken but not processed, and stay in the source.
	end(left []*letter) error
}

// queueSource takes messages from a queue. Messages that stay are held until the run ends and then put back.
type queueSource struct {
	taker

	client *amqpx.Client
	r      *requeue // its report counts what is put back and copied

	conn      *amqp.Connection // used by this run only
	limit     int64            // how many times a message may be put back
	consumers int              // number of other consumers

	copies       *amqp.Channel // nil before the first copy
	returned     chan amqp.Return
	copiesClosed chan *amqp.Error
	endCopies    func()
}

// begin examines the queue and opens the channel.
func (q *queueSource) begin(ctx context.Context) (total int, err error) {
	info, err := q.client.QueueInfo(ctx, q.queue) // waits until the broker can be reached
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

// count counts a queue's ready messages and consumers. For a queue without a leader, which the broker counts as empty,
// it returns a *live.UnavailableError.
func count(ctx context.Context, conn *amqp.Connection, ch *amqp.Channel, queue string) (amqp.Queue, error) {
	q, err := channels.Count(ctx, ch, queue)
	if err != nil || q.Messages+q.Consumers > 0 {
		return q, err
	}
	why, err := live.Answers(ctx, conn, queue)
	if why != "" {
		return amqp.Queue{}, &live.UnavailableError{Queue: queue, Reason: why}
	}
	if err != nil {
		return amqp.Queue{}, err
	}
	return channels.Count(ctx, ch, queue) // try again, because the queue may have had no leader for a moment
}

// learnLimit determines how many times the queue allows a message to be put back. Since RabbitMQ 4.3 there is no limit.
// Before that, a quorum queue uses the lower of an argument and a policy, and AMQP does not show policies: a
// declaration with the same argument succeeds under any policy. Without the management API, only a classic queue is
// certain to drop nothing.
func (q *queueSource) learnLimit(ctx context.Context) error {
	version := wire.Version(wire.Broker(q.conn))
	if version.AtLeast(4, 3, 0) && q.r.o.Management == nil {
		return nil
	}
	limit, err := allowedReturns(ctx, live.Internal(q.r.o.Management), q.queue, version)
	switch {
	case errors.Is(err, live.ErrUnavailable):
		return err
	case version.AtLeast(4, 3, 0):
		return nil
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

// classic reports whether the queue is known to be a classic queue, because the broker refuses to declare it as a
// quorum queue due to its type.
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
	q.r.rep.PutBack += len(taken) // acknowledge subtracts the messages that leave the queue
	list := make([]*letter, len(taken))
	for i, raw := range taken {
		list[i] = &letter{raw: raw, DeadLetter: ReadDeadLetter(raw, q.queue, q.r.prefix)}
	}
	return list, err
}

// acknowledge removes messages from the queue. It returns after the channel has processed the acknowledgements, so the
// next message is not sent before they are processed.
func (q *queueSource) acknowledge(round []*letter) error {
	for _, l := range round {
		if err := q.remove(&l.raw); err != nil {
			return fmt.Errorf("message %s was %s, but could not be acknowledged, so it may be delivered twice: %w", l.ID, l.fate.Outcome, err)
		}
		q.r.rep.PutBack--
	}
	return q.ask(q.forced, func() error { return q.ch.Qos(1, 0, false) }) // the broker answers after it has processed the acknowledgements
}

// keep makes sure that a message that stays can be put back. If the queue might drop it, keep publishes a copy to the
// end of the queue and removes the original.
func (q *queueSource) keep(l *letter) error {
	count, _ := header.Integer(l.raw.Headers, header.Deliveries)
	if !q.r.rep.CountsDeliveries || count+1 < q.limit {
		return nil
	}
	if err := q.copyBack(&l.raw); err != nil {
		return fmt.Errorf("message %s was delivered %d times and may be dropped when it is put back; copying it to the end of the queue failed: %w", l.raw.MessageId, count+1, err)
	}
	if err := q.remove(&l.raw); err != nil {
		return err
	}
	q.r.rep.Moved++
	q.r.rep.PutBack--
	return nil
}

// copyHeaders returns the headers of a message for its copy. The broker would also route the copy to the queues in a CC
// header, so that header is moved into the header rabbitdelay-carried.
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

// copyBack publishes an unchanged copy of a message to the queue from which it was taken.
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
		return fmt.Errorf("the broker has not confirmed the copy: %w", err)
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
	return fmt.Errorf("connection lost before the confirm: %w", <-q.copiesClosed)
}

// openCopies opens the channel for copies, which stays open for the rest of the run.
func (q *queueSource) openCopies(ctx context.Context) error {
	q.endCopies()
	sess, err := q.r.c.Publishing(ctx, true)
	if err != nil {
		return err
	}
	ch, err := channels.Open(sess.Conn)
	if err != nil {
		return err
	}
	q.copies, q.copiesClosed = ch, ch.NotifyClose(make(chan *amqp.Error, 1))
	q.returned, q.endCopies = ch.NotifyReturn(make(chan amqp.Return, 1)), func() { go func() { _ = ch.Close() }() }
	return ch.Confirm(false)
}

// end returns all unacknowledged messages to the queue, in order.
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

// mostReturned is the maximum number of messages that a run takes for the sole purpose of preserving their order.
const mostReturned = 20_000

// takeReturned takes the remaining messages that had been put back earlier. A quorum queue delivers these ahead of all
// others and adds returned messages behind them, so they keep their order only if all are returned together. If the
// broker counts returns, or puts messages back at the end, takeReturned takes none.
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

// savedSource takes messages from RequeueOptions.From. Messages that stay need no action, because From is not changed.
type savedSource struct {
	list   iter.Seq2[SavedMessage, error]
	prefix string

	next func() (SavedMessage, error, bool)
	stop func()
	read int // number of messages read in this pass
}

// begin reads all messages once, to find every error before anything is sent.
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
		l := &letter{raw: m.Message, line: m.Line, edited: m.edited, DeadLetter: ReadDeadLetter(m.Message, m.Queue, s.prefix)}
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
