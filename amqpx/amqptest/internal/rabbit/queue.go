package rabbit

import (
	"maps"
	"math"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// QueueSpec contains the arguments of queue.declare.
type QueueSpec struct {
	Name                           string
	Durable, AutoDelete, Exclusive bool
	Args                           amqp.Table
}

// Queue is a queue with its messages and consumers.
type Queue struct {
	QueueSpec

	vhost *VHost
	owner any // the connection of an exclusive queue

	quorum      bool
	ttl         int64 // ms, -1 for none
	idle        int64 // x-expires in ms, 0 for none
	maxLen      int64 // -1 for none
	maxBytes    int64 // -1 for none
	overflow    string
	deadLetter  *string // exchange name
	deadKey     *string
	atLeastOnce bool
	limit       int64 // delivery limit; math.MaxInt64 if there is none
	unlimited   bool  // there is no delivery limit
	maxPriority int   // for a classic queue
	single      bool  // x-single-active-consumer

	lines     lines // ready messages
	waiting   int   // number of unsettled messages
	dead      []*deadLetter
	consumers []*Consumer
	used      int64             // when it was last declared, left by a consumer or read with basic.get, in ms
	delayed   map[*Message]bool // messages that wait for their x-opt-delivery-time
	purges    int               // number of purges; they also drop delayed messages
	gone      bool
}

// The arguments that RabbitMQ compares when a queue is declared again, in RabbitMQ's order.
var (
	classicArgs = []string{
		"x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length",
		"x-max-length-bytes", "x-max-priority", "x-overflow", "x-queue-mode", "x-queue-version",
		"x-single-active-consumer", "x-queue-type", "x-queue-master-locator", "x-queue-leader-locator",
	}
	quorumArgs = []string{
		"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires", "x-max-length",
		"x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-overflow",
		"x-single-active-consumer", "x-queue-type", "x-quorum-initial-group-size", "x-delivery-limit",
		"x-message-ttl", "x-queue-leader-locator",
	}
)

func (q *Queue) of() string { return "queue '" + q.Name + "' in vhost '" + q.vhost.name + "'" }

// access returns an error if the queue is exclusive to another connection.
func (q *Queue) access(owner any) *Error {
	if q.owner == nil || q.owner == owner {
		return nil
	}
	return q.locked()
}

func (q *Queue) locked() *Error {
	return Refusal(amqp.ResourceLocked, "cannot obtain exclusive access to locked %s. It could be originally "+
		"declared on another connection or the exclusive property value does not match that of the original declaration.", q.of())
}

// Find returns the named queue. It returns an error if there is no such queue, or if the queue is exclusive to a
// connection other than owner.
func (v *VHost) Find(name string, owner any) (*Queue, *Error) {
	q := v.queues[name]
	if q == nil {
		return nil, missing("queue", name, v.name)
	}
	if err := q.access(owner); err != nil {
		return nil, err
	}
	return q, nil
}

// DeclareQueue creates a queue, or checks that the existing one is equivalent.
func (v *VHost) DeclareQueue(s QueueSpec, owner any) (*Queue, *Error) {
	if strings.HasPrefix(s.Name, "amq.") && v.queues[s.Name] == nil {
		return nil, reserved("queue", s.Name)
	}
	return v.DeclareNamed(s, owner)
}

// DeclareNamed works like DeclareQueue, but also accepts a name that the broker has generated, which may begin with
// "amq.".
func (v *VHost) DeclareNamed(s QueueSpec, owner any) (*Queue, *Error) {
	if kind := v.broker.opts.DefaultQueueType; kind != "" && !s.Exclusive && s.Durable && !s.AutoDelete {
		s.Args = withType(s.Args, kind)
	}
	s.Durable = s.Durable && !s.Exclusive
	if q := v.queues[s.Name]; q != nil {
		if err := q.equivalent(s, owner); err != nil {
			return nil, err
		}
		q.use()
		return q, nil
	}
	q := &Queue{QueueSpec: s, vhost: v, delayed: map[*Message]bool{}}
	if err := q.configure(); err != nil {
		return nil, err
	}
	if s.Exclusive {
		q.owner = owner
	}
	v.queues[s.Name] = q
	q.use()
	return q, nil
}

func (q *Queue) equivalent(s QueueSpec, owner any) *Error {
	if err := q.access(owner); err != nil {
		return err
	}
	if s.Exclusive != (q.owner != nil) {
		return q.locked()
	}
	if err := sameFlags(q.of(), flag{"durable", q.Durable, s.Durable}, flag{"auto_delete", q.AutoDelete, s.AutoDelete}); err != nil {
		return err
	}
	have, want := q.Args, s.Args
	if q.vhost.is(4, 0, 0) || !q.quorum && want["x-queue-type"] != "quorum" {
		have, want = withType(have, "classic"), withType(want, "classic") // no type means classic
	}
	keys := classicArgs
	if q.quorum {
		keys = quorumArgs
	}
	return sameArgs(q.of(), have, want, keys)
}

// withType returns the arguments with kind as the queue type, unless they already contain a type.
func withType(args amqp.Table, kind string) amqp.Table {
	all := amqp.Table{"x-queue-type": kind}
	maps.Copy(all, args)
	return all
}

func (q *Queue) configure() *Error {
	a := &arguments{table: q.Args, of: q.of()}
	kinds := []string{"classic", "quorum"}
	if q.vhost.is(4, 3, 0) {
		kinds = append(kinds, "") // an empty type means the default
	}
	q.quorum = a.oneOf("x-queue-type", `"unsupported queue type 'VALUE'"`, kinds...) == "quorum"
	a.known(q.quorum, q.vhost.broker.Version())
	q.idle = a.number("x-expires", 1, maxTTL, 0)
	q.ttl = a.number("x-message-ttl", 0, maxTTL, -1)
	q.maxLen = a.number("x-max-length", 0, math.MaxInt64, -1)
	q.maxBytes = a.number("x-max-length-bytes", 0, math.MaxInt64, -1)
	q.configureDeadLetters(a)
	q.single, _ = typed[bool](a, "x-single-active-consumer")
	strategy := a.oneOf("x-dead-letter-strategy", "invalid_dlx_strategy", "at-most-once", "at-least-once")
	q.atLeastOnce = q.quorum && strategy == "at-least-once" && q.overflow == "reject-publish" && q.deadLetter != nil
	priority := a.number("x-max-priority", 0, math.MaxInt64, 0)
	if priority > 255 {
		a.refusef("x-max-priority", "{max_value_exceeded,%d}", priority)
	}
	q.maxPriority = int(min(priority, 255))
	if q.quorum {
		q.configureQuorum(a)
	}
	q.lines = q.newLines()
	if _, ok := q.Args["x-queue-master-locator"]; ok && a.err == nil && q.vhost.is(4, 3, 0) {
		return deprecated("queue_master_locator")
	}
	return a.err
}

func (q *Queue) configureDeadLetters(a *arguments) {
	if x, ok := q.Args["x-dead-letter-exchange"]; ok {
		name, ok := x.(string)
		if q.deadLetter = &name; !ok && a.err == nil {
			a.err = precondition("invalid type '%s' for arg 'x-dead-letter-exchange' in %s", typeName(x), q.of())
		}
	}
	if k, ok := typed[string](a, "x-dead-letter-routing-key"); ok {
		q.deadKey = &k
		if q.deadLetter == nil {
			a.refusef("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
		}
	}
	q.overflow = a.oneOf("x-overflow", "invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx")
}

func (q *Queue) configureQuorum(a *arguments) {
	// RabbitMQ does not check the type, and a value that is not a number compares as greater than any count.
	v, set := q.Args["x-delivery-limit"]
	n, whole := integer(v)
	switch since4 := q.vhost.is(4, 0, 0); {
	case !set && since4:
		q.limit = 20
	case !set, whole && n < 0 && since4:
		q.limit, q.unlimited = math.MaxInt64, true
	case whole:
		q.limit = n
	default:
		q.limit = math.MaxInt64
	}
	for _, f := range []struct {
		wrong bool
		name  string
	}{{!q.Durable && !q.Exclusive, "non-durable"}, {q.AutoDelete, "auto-delete"}, {q.Exclusive, "exclusive-owner"}} {
		if f.wrong && a.err == nil {
			a.err = precondition("invalid property '%s' for %s", f.name, q.of())
		}
	}
	if q.overflow == "reject-publish-dlx" {
		q.overflow = "drop-head" // quorum queues do not support reject-publish-dlx
	}
}

// use restarts the x-expires timer of a queue.
func (q *Queue) use() {
	if q.idle == 0 {
		return
	}
	b := q.vhost.broker
	q.used = b.now
	b.at(b.now+q.idle, func() {
		if !q.gone && len(q.consumers) == 0 && b.now >= q.used+q.idle {
			q.vhost.remove(q)
		}
	})
}

// DeleteQueue deletes a queue with its messages and returns how many were ready. It also succeeds if the queue does not
// exist.
func (v *VHost) DeleteQueue(name string, owner any, ifUnused, ifEmpty bool) (int, *Error) {
	q := v.queues[name]
	if q == nil {
		return 0, nil
	}
	if err := q.access(owner); err != nil {
		return 0, err
	}
	switch {
	case ifUnused && len(q.consumers) > 0:
		return 0, precondition("%s in use", q.of())
	case ifEmpty && q.Ready() > 0:
		return 0, precondition("%s not empty", q.of())
	}
	n := q.Ready()
	v.remove(q)
	return n, nil
}

// remove deletes a queue and cancels its consumers.
func (v *VHost) remove(q *Queue) {
	q.gone = true
	delete(v.queues, q.Name)
	v.unbindAll(func(b *Binding) bool { return b.Queue == q.Name })
	for _, c := range slices.Clone(q.consumers) {
		delete(c.channel.consumers, c.Tag)
		c.channel.sink.Cancelled(c.Tag)
	}
	q.consumers = nil
}

// Purge drops the ready and the delayed messages, and returns how many were ready.
func (q *Queue) Purge() int {
	n := q.Ready()
	q.lines = q.newLines()
	clear(q.delayed)
	q.purges++
	return n
}

// Ready returns the number of messages that can be delivered.
func (q *Queue) Ready() int { return q.lines.count }

// Unacked returns the number of unsettled messages.
func (q *Queue) Unacked() int { return q.waiting }

// Dying returns the number of dead letters of an at-least-once queue that could not be routed yet.
func (q *Queue) Dying() int { return len(q.dead) }

// Delayed returns the number of messages that wait for their x-opt-delivery-time (RabbitMQ 4.4).
func (q *Queue) Delayed() int { return len(q.delayed) }

// Consumers returns the number of consumers, as the answer to a declaration reports it.
func (q *Queue) Consumers() int { return len(q.consumers) }

// Quorum reports whether the queue is a quorum queue.
func (q *Queue) Quorum() bool { return q.quorum }

// Messages returns the ready messages in delivery order.
func (q *Queue) Messages() []*Message { return q.lines.all() }
