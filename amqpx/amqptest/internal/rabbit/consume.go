package rabbit

import (
	"fmt"
	"math"
	"slices"
	"sort"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Sink receives the deliveries and cancellations for the consumers of a channel.
type Sink interface {
	// Deliver sends a message to the client for one of its consumers.
	Deliver(consumer string, d Delivery)
	// Cancelled is called when the broker cancels a consumer, for example because its queue was deleted.
	Cancelled(consumer string)
}

// Delivery is a message that was delivered to a consumer or fetched with basic.get.
type Delivery struct {
	Tag         uint64
	Redelivered bool
	Message     *Message
}

// Channel is the state of an AMQP channel: its consumers and unsettled deliveries.
type Channel struct {
	broker    *Broker
	owner     any // the connection
	sink      Sink
	prefetch  int // prefetch of each consumer that starts from now on
	global    int // prefetch of all consumers together
	tag       uint64
	unacked   []*held // ordered by tag
	consumers map[string]*Consumer
	paused    map[string]*Consumer // consumers that a consumer timeout has cancelled, until the client cancels them too
	names     int
}

type held struct {
	tag      uint64
	message  *Message
	queue    *Queue
	consumer *Consumer // nil for basic.get
	at       int64
	gone     bool // the consumer timeout has requeued it, so its settlement has no effect
}

// Consumer is a consumer of a queue, on the channel that started it.
type Consumer struct {
	Tag       string
	NoAck     bool
	Exclusive bool
	Priority  int64

	queue    *Queue
	channel  *Channel
	prefetch int
	inFlight int
}

// NewChannel returns a channel of the connection owner, whose client receives deliveries through sink.
func (b *Broker) NewChannel(owner any, sink Sink) *Channel {
	return &Channel{broker: b, owner: owner, sink: sink, consumers: map[string]*Consumer{}, paused: map[string]*Consumer{}}
}

// Qos limits the unsettled deliveries of each consumer that starts later or, if global is true, the unsettled
// deliveries of the whole channel.
func (c *Channel) Qos(prefetch int, global bool) *Error {
	if !global || c.broker.is(4, 3, 0) { // 4.3 ignores global, so the limit applies to each consumer
		c.prefetch = prefetch
		return nil
	}
	c.global = prefetch
	c.pumpAll()
	return nil
}

// Consume starts a consumer. It generates a tag if the consumer has none. It calls begun before the first delivery.
func (c *Channel) Consume(q *Queue, k Consumer, args amqp.Table, begun func(tag string)) *Error {
	if k.Tag == "" {
		c.names++
		k.Tag = fmt.Sprintf("amq.ctag-%p-%d", c, c.names)
	}
	if c.consumers[k.Tag] != nil {
		return Refusal(amqp.NotAllowed, "attempt to reuse consumer tag '%s'", k.Tag)
	}
	if k.Exclusive && len(q.consumers) > 0 || len(q.consumers) > 0 && q.consumers[0].Exclusive {
		return Refusal(amqp.AccessRefused, "%s in exclusive use", q.of())
	}
	if c.global > 0 && q.quorum {
		return Refusal(amqp.NotImplemented, "%s does not support global qos", q.of())
	}
	a := &arguments{table: args, of: q.of()}
	if k.Priority = a.number("x-priority", math.MinInt64, math.MaxInt64, 0); a.err != nil {
		return a.err
	}
	k.queue, k.channel, k.prefetch = q, c, c.prefetch
	c.consumers[k.Tag] = &k
	q.consumers = append(q.consumers, &k)
	if !q.single {
		sort.SliceStable(q.consumers, func(i, j int) bool { return q.consumers[i].Priority > q.consumers[j].Priority })
	}
	begun(k.Tag)
	q.pump()
	return nil
}

// Cancel stops a consumer. Its unsettled deliveries stay with the channel.
func (c *Channel) Cancel(tag string) {
	delete(c.paused, tag)
	k := c.consumers[tag]
	if k == nil {
		return
	}
	delete(c.consumers, tag)
	k.leave()
	k.queue.consumerLeft()
}

func (k *Consumer) leave() {
	k.queue.consumers = slices.DeleteFunc(k.queue.consumers, func(x *Consumer) bool { return x == k })
}

// consumerLeft updates the queue after a consumer has stopped. It deletes an auto-delete queue without consumers, and
// otherwise delivers to the next consumer.
func (q *Queue) consumerLeft() {
	q.use()
	if q.AutoDelete && len(q.consumers) == 0 && !q.gone {
		q.vhost.remove(q)
	}
	q.pump()
}

// Get delivers one message. It returns false if none is ready.
func (c *Channel) Get(q *Queue, noAck bool) (d Delivery, ok bool, err *Error) {
	if q.single && q.quorum {
		return d, false, Refusal(amqp.ResourceLocked, "cannot obtain access to locked %s. basic.get operations "+
			"are not supported by quorum queues with single active consumer", q.of())
	}
	q.use()
	q.expire()
	l := q.lines.nextLine()
	if l == nil {
		return d, false, nil
	}
	d = c.hand(q.lines.popFirst(l), q, nil, noAck)
	q.expire() // the message that is now at the head may have expired
	return d, true, nil
}

// hand delivers a message to consumer k, or to basic.get if k is nil.
func (c *Channel) hand(m *Message, q *Queue, k *Consumer, noAck bool) Delivery {
	c.tag++
	d := Delivery{Tag: c.tag, Redelivered: m.returned, Message: m}
	if !noAck {
		c.unacked = append(c.unacked, &held{tag: c.tag, message: m, queue: q, consumer: k, at: c.broker.now})
		q.waiting++
		if k != nil {
			k.inFlight++
		}
	}
	return d
}

// Oldest returns the time of the oldest unsettled delivery in ms or, if quorumOnly is true, of the oldest one from a
// quorum queue. It returns false if there is none.
func (c *Channel) Oldest(quorumOnly bool) (ms int64, ok bool) {
	for _, h := range c.unacked {
		if !h.gone && (!quorumOnly || h.queue.quorum) {
			return h.at, true
		}
	}
	return 0, false
}

// Overdue applies the consumer timeout of RabbitMQ 4.3 and later. It cancels the consumers of quorum queues that have
// not settled a delivery made at or before the given time, and requeues these deliveries without counting them as
// failed. Later deliveries stay with the channel.
//
// Overdue returns true if the channel must be closed because the broker has no consumer to cancel. That is the case if
// the client has already cancelled the consumer, or has received the message by basic.get.
func (c *Channel) Overdue(ms int64) (untold bool) {
	var overdue []*held
	var ended []*Consumer
	for _, h := range c.unacked {
		if h.at > ms || h.gone || !h.queue.quorum {
			continue
		}
		overdue = append(overdue, h)
		h.gone = true
		h.queue.waiting--
		k := h.consumer
		if k == nil { // basic.get
			untold = true
			continue
		}
		k.inFlight--
		switch k {
		case c.consumers[k.Tag]:
			delete(c.consumers, k.Tag)
			c.paused[k.Tag] = k
			k.leave()
			ended = append(ended, k)
			c.sink.Cancelled(k.Tag)
		case c.paused[k.Tag]:
			c.sink.Cancelled(k.Tag) // 4.3 cancels a consumer again for each further overdue delivery
		default:
			untold = true
		}
	}
	c.giveBack(overdue, giving{requeue: true, asked: true})
	for _, k := range ended {
		k.queue.consumerLeft()
	}
	return untold
}

// settle removes the delivery with the given tag or, if multiple is true, all deliveries up to it. In that case, the
// tag 0 means all deliveries.
func (c *Channel) settle(tag uint64, multiple bool) ([]*held, *Error) {
	i := sort.Search(len(c.unacked), func(i int) bool { return c.unacked[i].tag >= tag })
	var done []*held
	switch {
	case multiple && tag == 0:
		done, c.unacked = c.unacked, nil
	case i == len(c.unacked) || c.unacked[i].tag != tag:
		return nil, precondition("unknown delivery tag %d", tag)
	case multiple:
		done = slices.Clone(c.unacked[:i+1])
		c.unacked = slices.Delete(c.unacked, 0, i+1)
	default:
		done = []*held{c.unacked[i]}
		c.unacked = slices.Delete(c.unacked, i, i+1)
	}
	done = slices.DeleteFunc(done, func(h *held) bool { return h.gone })
	for _, h := range done {
		h.queue.waiting--
		if h.consumer != nil {
			h.consumer.inFlight--
		}
	}
	return done, nil
}

// Ack implements basic.ack, which removes messages for good.
func (c *Channel) Ack(tag uint64, multiple bool) *Error {
	done, err := c.settle(tag, multiple)
	c.pumpFor(done)
	return err
}

// Reject implements basic.reject, which requeues or dead-letters a message.
func (c *Channel) Reject(tag uint64, requeue bool) *Error {
	done, err := c.settle(tag, false)
	c.giveBack(done, giving{requeue: requeue, asked: true, failed: true})
	return err
}

// Nack implements basic.nack. Since 4.3 it does not count as a failed delivery.
func (c *Channel) Nack(tag uint64, multiple, requeue bool) *Error {
	done, err := c.settle(tag, multiple)
	c.giveBack(done, giving{requeue: requeue, asked: true, failed: !c.broker.is(4, 3, 0)})
	return err
}

// giving says how messages are returned to their queue.
type giving struct {
	requeue bool // requeue instead of dead-letter
	asked   bool // requested by the consumer, not caused by the end of its channel
	failed  bool // counts as a failed delivery
}

// giveBack requeues or dead-letters settled deliveries.
func (c *Channel) giveBack(done []*held, how giving) {
	for _, h := range done {
		if !h.queue.gone {
			h.queue.comeBack(h.message, how)
		}
	}
	c.pumpFor(done)
}

// comeBack makes a returned message ready again, or dead-letters it.
func (q *Queue) comeBack(m *Message, how giving) {
	again := *m
	again.returned = true
	if q.quorum || q.vhost.is(4, 3, 0) { // 4.3 counts returns in classic queues too
		again.acquired++
		if how.failed {
			again.deliveries++
			if q.vhost.is(4, 3, 0) || !how.requeue || !how.asked {
				again.lasting++
			}
		}
	}
	switch {
	case !how.requeue:
		q.giveUp(&again, reasonRejected)
		return
	case q.quorum && again.counted(q.vhost.broker.Version()) > q.limit:
		q.giveUp(&again, reasonDeliveryLimit)
		return
	}
	last := q.quorum && q.unlimited && how.asked && !q.vhost.is(4, 3, 0)
	if last {
		q.vhost.broker.seq++
		again.seq = q.vhost.broker.seq
	}
	q.lines.putBack(&again, q.quorum && !last)
	q.expire()
}

// Recover requeues all unsettled deliveries of the channel.
func (c *Channel) Recover() {
	done, _ := c.settle(0, true)
	c.giveBack(done, giving{requeue: true, asked: true, failed: !c.broker.is(4, 3, 0)})
}

// Close stops the channel and its consumers, and requeues the unsettled deliveries.
func (c *Channel) Close() {
	done, _ := c.settle(0, true)
	ended := c.consumers
	c.consumers = map[string]*Consumer{}
	for _, k := range ended {
		k.leave()
	}
	c.giveBack(done, giving{requeue: true, failed: true})
	for _, k := range ended {
		k.queue.consumerLeft()
	}
}

// Holds returns the number of the channel's unsettled deliveries.
func (c *Channel) Holds() (n int) {
	for _, h := range c.unacked {
		if !h.gone {
			n++
		}
	}
	return n
}

// Consuming returns the number of the channel's consumers.
func (c *Channel) Consuming() int { return len(c.consumers) }

func (c *Channel) pumpFor(done []*held) {
	if c.global > 0 {
		c.pumpAll()
	}
	var last *Queue
	for _, h := range done {
		if h.queue != last {
			last = h.queue
			last.pump()
		}
	}
}

func (c *Channel) pumpAll() {
	for _, k := range c.consumers {
		k.queue.pump()
	}
}

// takes reports whether the consumer may receive one more message.
func (k *Consumer) takes() bool {
	if k.NoAck {
		return true
	}
	c := k.channel
	return (k.prefetch == 0 || k.inFlight < k.prefetch) && (c.global == 0 || len(c.unacked) < c.global)
}

// next returns the next consumer in round-robin order, or nil if no consumer may receive a message.
func (q *Queue) next() *Consumer {
	for i, k := range q.consumers {
		switch takes := k.takes(); {
		case q.single && !takes:
			return nil
		case q.single:
			return k
		case !takes:
			continue
		}
		// Move the consumer behind all others of the same priority.
		j := i
		for j+1 < len(q.consumers) && q.consumers[j+1].Priority == k.Priority {
			q.consumers[j] = q.consumers[j+1]
			j++
		}
		q.consumers[j] = k
		return k
	}
	return nil
}

// pump delivers as many messages as the consumers may receive.
func (q *Queue) pump() {
	now := q.vhost.broker.now
	handed := false
	for !q.gone {
		l := q.lines.nextLine()
		if l == nil || len(q.consumers) == 0 {
			break
		}
		if m := l.first(); m.expires != 0 && m.expires <= now && m.queued < now {
			q.giveUp(q.lines.popFirst(l), reasonExpired)
			continue
		}
		k := q.next()
		if k == nil {
			break
		}
		handed = true
		k.channel.sink.Deliver(k.Tag, k.channel.hand(q.lines.popFirst(l), q, k, k.NoAck))
	}
	if handed {
		q.expire() // the message that is now at the head may have expired
	}
}
