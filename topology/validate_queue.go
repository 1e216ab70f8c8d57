package topology

import (
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

func (v *validator) queue(path string, q Queue) {
	v.name(path, "a queue", q.Name)
	classic := q.Type == Classic
	switch q.Type {
	case "", Quorum, Classic:
	default:
		v.addf(path+".type", "unknown queue type %q; expected %s or %s", yamldoc.Clip(string(q.Type)), Quorum, Classic)
	}
	if q.MessageTTL != nil {
		v.milliseconds(path+".message_ttl", *q.MessageTTL)
	}
	v.overflow(path, q, classic)
	v.deadLetter(path, q, classic)
	v.count(path+".max_length", q.MaxLength, 0)
	v.count(path+".max_length_bytes", q.MaxLengthBytes, 0)
	if q.DeliveryLimit != nil && classic {
		v.addf(path+".delivery_limit", "only quorum queues have a delivery limit and this is a classic one; remove it or change the type")
	} else {
		v.count(path+".delivery_limit", q.DeliveryLimit, -1)
	}
	v.loop(path, q)
	v.expires(path, q)
	v.priorities(path, q, classic)
	v.arguments(path, q.Arguments)
}

// loop refuses a queue whose messages expire into themselves through queues that all
// have a TTL: the broker drops a message that comes round without having been rejected.
func (v *validator) loop(path string, q Queue) {
	next := func(q Queue) (Queue, bool) {
		if q.MessageTTL == nil || q.DeadLetter == nil || q.DeadLetter.Exchange != "" || q.DeadLetter.RoutingKey == nil {
			return Queue{}, false
		}
		i := slices.IndexFunc(v.t.Queues, func(x Queue) bool { return x.Name == *q.DeadLetter.RoutingKey })
		if i < 0 {
			return Queue{}, false
		}
		return v.t.Queues[i], true
	}
	way := []string{q.Name}
	for at, ok := next(q); ok && len(way) <= len(v.t.Queues); at, ok = next(at) {
		way = append(way, at.Name)
		if at.Name == q.Name {
			v.addf(path+".dead_letter", "messages expire in a circle, %s, and brokers drop them; let one of the queues have no message_ttl, or another dead_letter", yamldoc.Clip(strings.Join(way, " -> ")))
			return
		}
	}
}

// milliseconds checks a duration that becomes a number of milliseconds.
func (v *validator) milliseconds(path string, d time.Duration) {
	switch {
	case d < 0:
		v.addf(path, "expected 0 to %s, got %s", FormatDuration(MaxTTL), FormatDuration(d))
	case d > MaxTTL:
		v.addf(path, "%s is too long: a broker accepts at most %s (ten years)", FormatDuration(d), FormatDuration(MaxTTL))
	case d%time.Millisecond != 0:
		v.addf(path, "expected whole milliseconds, got %s", FormatDuration(d))
	}
}

func (v *validator) count(path string, n *int64, least int64) {
	if n != nil && *n < least {
		v.addf(path, "expected %d or more, got %d", least, *n)
	}
}

func (v *validator) overflow(path string, q Queue, classic bool) {
	path += ".overflow"
	switch q.Overflow {
	case "", argument.DropHead, argument.RejectPublish:
	case argument.RejectPublishDLX:
		if !classic {
			v.addf(path, "a quorum queue takes %s for %s; expected %s or %s", argument.RejectPublishDLX, argument.DropHead, argument.DropHead, argument.RejectPublish)
		}
	default:
		v.addf(path, "unknown overflow %q; expected %s, %s, or on a classic queue %s", yamldoc.Clip(q.Overflow), argument.DropHead, argument.RejectPublish, argument.RejectPublishDLX)
	}
}

func (v *validator) deadLetter(path string, q Queue, classic bool) {
	d := q.DeadLetter
	if d == nil {
		return
	}
	path += ".dead_letter"
	v.short(path+".exchange", d.Exchange)
	v.reference(path+".exchange", KindExchange, d.Exchange)
	if d.RoutingKey != nil {
		v.short(path+".routing_key", *d.RoutingKey)
		if d.Exchange == "" && *d.RoutingKey == q.Name && q.IsDelay() {
			v.addf(path+".routing_key", "the queue dead-letters to itself, so an expired message would be dropped as a cycle; name another queue")
		}
	}
	if !d.AtLeastOnce {
		return
	}
	if classic {
		v.addf(path+".at_least_once", "only quorum queues dead-letter at least once and this is a classic one; remove it or change the type")
	} else if q.Overflow != argument.RejectPublish {
		v.addf(path+".at_least_once", "it needs overflow: %s, got %q; with any other the broker dead-letters at most once and does not say so", argument.RejectPublish, q.Overflow)
	}
}

// expires checks x-expires, which deletes a queue, with the messages that wait
// in it, when nobody has consumed from it for a while. Nobody ever consumes
// from a delay queue.
func (v *validator) expires(path string, q Queue) {
	value, ok := q.Arguments[argument.Expires]
	if !ok {
		return
	}
	path += ".arguments." + argument.Expires
	if q.IsDelay() || v.prefix != "" && strings.HasPrefix(q.Name, v.prefix+".") {
		v.addf(path, "a delay queue must not expire: the broker would delete it with the messages that wait in it; remove %s", argument.Expires)
		return
	}
	if n, ok := argument.Integer(value); !ok || n < 1 || n > MaxTTL.Milliseconds() {
		v.addf(path, "expected 1 to %d milliseconds, got %s", MaxTTL.Milliseconds(), argument.Format(value))
	}
}

func (v *validator) priorities(path string, q Queue, classic bool) {
	value, ok := q.Arguments[argument.MaxPriority]
	if !ok {
		return
	}
	path += ".arguments." + argument.MaxPriority
	if !classic {
		v.addf(path, "quorum queues take no %s: they have two priorities of their own (4.0 or later); remove it or make the queue classic", argument.MaxPriority)
		return
	}
	if n, ok := argument.Integer(value); !ok || n < 0 || n > 255 {
		v.addf(path, "expected 0 to 255, got %s", argument.Format(value))
	}
}
