package dlx

import (
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// Topology is the delivery exchange, a queue with its entry exchange for each
// value of each digit, and an exchange for each position except the highest.
//
// A message enters the queue of its highest digit that is not 0. From there on it
// is dead-lettered to the exchange of the next lower position, which puts it into
// the queue of the next digit that is not 0, or hands it to the delivery exchange
// when there is none. Each exchange knows all positions below it: to pass a
// message on from exchange to exchange, one for each 0, would cost the broker as
// much again as routing it to its queue, and round delays are mostly zeros.
//
// The exchanges of the positions have the parked queue as their alternate, so
// that a missing queue never blocks the at-least-once queue above it.
func (b *Bucket) Topology() topology.Topology {
	t := topology.DeliveryTopology(b.prefix)
	l := &b.layout
	top := len(l.radices) - 1
	for i := top; i >= 0; i-- {
		next := b.deliver
		if i > 0 {
			next = b.level(i - 1)
		}
		for v := int64(1); v < l.radices[i]; v++ {
			addQueue(&t, delayQueue(b.names[i][v], l.ttl(i, v), next, b.queueType), b.checked)
		}
	}
	if b.checked {
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: b.base, Kind: "topic"})
		b.bindDigits(&t, b.base, l.tag, top)
	}
	for i := top - 1; i >= 0; i-- { // nothing is dead-lettered into the highest position
		t.Exchanges = append(t.Exchanges, topology.Exchange{
			Name: b.level(i), Kind: "topic", AlternateExchange: topology.ParkedQueue(b.prefix),
		})
		above := l.tag + strings.Repeat(".*", top-i)
		b.bindDigits(&t, b.level(i), above, i)
		t.Bindings = append(t.Bindings, topology.Binding{
			Exchange: b.level(i), ToExchange: b.deliver, RoutingKey: above + strings.Repeat(".0", i+1) + ".#",
		})
	}
	return t
}

// bindDigits binds the queues of the positions from i down to an exchange, each
// by the digit of its own after zeros.
func (b *Bucket) bindDigits(t *topology.Topology, exchange, above string, i int) {
	l := &b.layout
	for ; i >= 0; i-- {
		for v := int64(1); v < l.radices[i]; v++ {
			t.Bindings = append(t.Bindings, topology.Binding{
				Exchange: exchange, Queue: b.names[i][v], RoutingKey: above + "." + strconv.FormatInt(v, 10) + ".#",
			})
		}
		above += ".0"
	}
}

// level is the exchange for messages that come from a higher position.
func (b *Bucket) level(i int) string { return b.base + ".level-" + strconv.Itoa(i) }

// delayQueue holds messages for ttl and then dead-letters them, with their own
// routing key, to next.
func delayQueue(name string, ttl time.Duration, next string, qt topology.QueueType) topology.Queue {
	q := topology.Queue{
		Name:       name,
		Type:       qt,
		MessageTTL: &ttl,
		DeadLetter: &topology.DeadLetter{Exchange: next},
	}
	if qt == topology.Quorum {
		q.DeadLetter.AtLeastOnce = true
		q.Overflow = argument.RejectPublish // any other turns at-least-once off
		limit := topology.NoDeliveryLimit
		q.DeliveryLimit = &limit
	}
	return q
}
