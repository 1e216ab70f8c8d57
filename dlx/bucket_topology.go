package dlx

import (
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Topology is the delivery exchange, an entry exchange, an exchange per
// position and a queue per value of each digit.
//
// A message enters through the entry exchange, which puts it into the queue of
// its highest digit that is not 0. From there on it is dead-lettered to the
// exchange of the next lower position, which either holds it in the queue of
// its digit or, for the digit 0, hands it to the exchange below; the lowest one
// hands it to the delivery exchange.
//
// The entry exchange has no alternate exchange, so that a missing queue makes a
// mandatory message come back to its publisher. The exchanges of the positions
// have the parked queue as theirs, so that a missing queue never blocks the
// at-least-once queue above it.
func (b *Bucket) Topology() topology.Topology {
	t := topology.Delivery(b.prefix)
	l := &b.layout
	top := len(l.radices) - 1
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: b.base, Kind: "topic"})
	for i := top; i >= 0; i-- {
		stars := strings.Repeat(".*", top-i)
		zeros := strings.Repeat(".0", top-i)
		next := b.deliver
		if i > 0 {
			next = b.level(i - 1)
		}
		if i < top { // nothing is dead-lettered into the highest position
			level := b.level(i)
			t.Exchanges = append(t.Exchanges, topology.Exchange{
				Name: level, Kind: "topic", AlternateExchange: topology.ParkedQueue(b.prefix),
			})
			t.Bindings = append(t.Bindings, topology.Binding{Exchange: level, ToExchange: next, RoutingKey: l.tag + stars + ".0.#"})
		}
		for v := int64(1); v < l.radices[i]; v++ {
			q := b.queue(l.ttl(i, v), next)
			t.Queues = append(t.Queues, q)
			digit := "." + strconv.FormatInt(v, 10) + ".#"
			t.Bindings = append(t.Bindings, topology.Binding{Exchange: b.base, Queue: q.Name, RoutingKey: l.tag + zeros + digit})
			if i < top {
				t.Bindings = append(t.Bindings, topology.Binding{Exchange: b.level(i), Queue: q.Name, RoutingKey: l.tag + stars + digit})
			}
		}
	}
	return t
}

// level is the exchange for messages that come from a higher position.
func (b *Bucket) level(i int) string { return b.base + ".level-" + strconv.Itoa(i) }

func (b *Bucket) queue(ttl time.Duration, next string) topology.Queue {
	return delayQueue(b.base, ttl, next, b.queueType)
}

// delayQueue holds messages for ttl and then dead-letters them, with their own
// routing key, to next.
func delayQueue(base string, ttl time.Duration, next string, qt topology.QueueType) topology.Queue {
	q := topology.Queue{
		Name:       base + "." + durationName(ttl),
		Type:       qt,
		MessageTTL: &ttl,
		DeadLetter: &topology.DeadLetter{Exchange: next},
	}
	if qt == topology.Quorum {
		q.DeadLetter.AtLeastOnce = true
		q.Overflow = topology.OverflowRejectPublish // any other turns at-least-once off
	}
	return q
}
