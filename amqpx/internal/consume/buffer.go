package consume

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// buffer contains the deliveries that have not been passed to a handler. A buffered delivery does not occupy a handler
// slot. The prefetch limits the number of buffered deliveries. Only the intake goroutine uses a buffer, so it needs no
// lock.
type buffer struct {
	held  deliveryHeap // waiting for their start time (dueCheck.at)
	ready deliveryHeap // waiting for a handler slot
	aside []*Delivery  // set aside while this consumer handles an earlier delivery of the same message
	early []*Delivery  // to be sent back to the broker
	worn  []*Delivery  // to be renewed; some of these are in held as well

	count, bytes int // totals over all lists
}

// deliveryOverhead is the memory in bytes that a delivery uses in addition to its body.
const deliveryOverhead = 1 << 10

// note adds n deliveries of d's size to the totals.
func (b *buffer) note(d *Delivery, n int) {
	b.count += n
	b.bytes += n * (len(d.Raw.Body) + deliveryOverhead)
}

// add buffers a delivery that has just arrived or could not be renewed.
func (b *buffer) add(d *Delivery, now time.Time) {
	b.note(d, 1)
	if d.worn {
		b.worn = append(b.worn, d)
		if !d.check.at.After(now) { // the delivery is handled only after the attempt to renew it
			return
		}
	}
	b.place(d, now)
}

// place puts a delivery into the list that matches its state.
func (b *buffer) place(d *Delivery, now time.Time) {
	switch {
	case d.check.at.After(now):
		heap.Push(&b.held, d)
	case d.check.early:
		b.early = append(b.early, d)
	default:
		heap.Push(&b.ready, d)
	}
}

// takeEarly removes and returns the deliveries that must be sent back to the broker.
func (b *buffer) takeEarly() []*Delivery {
	early := b.early
	b.early = nil
	for _, d := range early {
		b.note(d, -1)
	}
	return early
}

// wearHeld marks the held deliveries for renewal.
func (b *buffer) wearHeld() {
	for _, d := range b.held {
		if !d.worn {
			d.worn = true
			b.worn = append(b.worn, d)
		}
	}
}

// nextWorn removes and returns the first delivery to be renewed, or returns nil if there is none.
func (b *buffer) nextWorn() *Delivery {
	for len(b.worn) > 0 {
		d := b.worn[0]
		b.worn = b.worn[1:]
		if !d.worn {
			continue // the delivery's start time has arrived, so it is handled instead
		}
		if d.index >= 0 {
			heap.Remove(&b.held, d.index)
		}
		b.note(d, -1)
		d.worn = false
		return d
	}
	return nil
}

// checkAgain calls check for every delivery whose start time is uncertain (dueCheck.doubt), and restores the order of
// the heap.
func (b *buffer) checkAgain(check func(d *Delivery)) {
	for _, d := range b.held {
		if d.check.doubt {
			check(d)
		}
	}
	heap.Init(&b.held)
}

// ripen moves the deliveries whose start time has arrived to the ready list. It returns the time until the next start
// time, or 0 if no held delivery remains.
func (b *buffer) ripen(now time.Time) (pause time.Duration) {
	for len(b.held) > 0 {
		if pause = b.held[0].check.at.Sub(now); pause > 0 {
			return pause
		}
		d := pop(&b.held)
		d.worn = false
		b.place(d, now)
	}
	return 0
}

// next removes and returns the delivery to be handled first.
func (b *buffer) next() *Delivery {
	d := pop(&b.ready)
	b.note(d, -1)
	return d
}

// all returns the buffered deliveries, in no particular order.
func (b *buffer) all() []*Delivery {
	all := slices.Concat(b.ready, b.held, b.aside, b.early)
	for _, d := range b.worn {
		if d.worn && d.index < 0 {
			all = append(all, d)
		}
	}
	return all
}

// empty removes all deliveries and returns them in delivery order.
func (b *buffer) empty() (all []amqp.Delivery) {
	for _, d := range b.all() {
		all = append(all, d.Raw)
	}
	*b = buffer{}
	slices.SortFunc(all, func(a, b amqp.Delivery) int { return cmp.Compare(a.DeliveryTag, b.DeliveryTag) })
	return all
}

// setAside keeps a delivery until the next call of release.
func (b *buffer) setAside(d *Delivery) {
	b.note(d, 1)
	b.aside = append(b.aside, d)
}

// release moves the deliveries that were set aside back to the other lists.
func (b *buffer) release(now time.Time) {
	for _, d := range b.aside {
		b.place(d, now)
	}
	b.aside = nil
}

// oldest returns the time since which the first ready delivery has waited for a slot, or the zero time if none is
// ready.
func (b *buffer) oldest() time.Time {
	if len(b.ready) == 0 {
		return time.Time{}
	}
	return b.ready[0].check.at
}

// deliveryHeap is a heap ordered by start time, then by delivery tag.
type deliveryHeap []*Delivery

func (s deliveryHeap) Len() int { return len(s) }
func (s deliveryHeap) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}
func (s deliveryHeap) Less(i, j int) bool {
	if s[i].check.at.Equal(s[j].check.at) {
		return s[i].Raw.DeliveryTag < s[j].Raw.DeliveryTag
	}
	return s[i].check.at.Before(s[j].check.at)
}

// Push implements heap.Interface.
func (s *deliveryHeap) Push(x any) {
	d, _ := x.(*Delivery)
	d.index = len(*s)
	*s = append(*s, d)
}

// Pop implements heap.Interface.
func (s *deliveryHeap) Pop() any {
	old := *s
	last := old[len(old)-1]
	last.index = -1
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return last
}

func pop(s *deliveryHeap) *Delivery {
	d, _ := heap.Pop(s).(*Delivery)
	return d
}
