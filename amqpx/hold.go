package amqpx

import (
	"cmp"
	"container/heap"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// holding buffers deliveries that have not been passed to a handler. A buffered delivery takes no handler slot.
// The prefetch bounds their number. Only the intake goroutine uses a holding, so it needs no lock.
type holding struct {
	early jobs   // waiting for their start time (job.at)
	ready jobs   // waiting for a handler slot
	aside []*job // set aside while this consumer handles an earlier delivery of the same message
	back  []*job // to be sent back to the broker
	worn  []*job // to be renewed, in order of arrival; some of them are in early as well

	count, bytes int // totals over all lists
}

// jobOverhead is the memory in bytes that a delivery takes in addition to its body.
const jobOverhead = 1 << 10

// note adds n deliveries of j's size to the totals.
func (h *holding) note(j *job, n int) {
	h.count += n
	h.bytes += n * (len(j.raw.Body) + jobOverhead)
}

// add buffers a delivery.
func (h *holding) add(j *job, now time.Time) {
	h.note(j, 1)
	if j.worn {
		h.worn = append(h.worn, j)
		if !j.at.After(now) { // it is not handled before the attempt to renew it has ended
			return
		}
	}
	h.place(j, now)
}

// place puts a delivery into the list that matches its state.
func (h *holding) place(j *job, now time.Time) {
	switch {
	case j.at.After(now):
		heap.Push(&h.early, j)
	case j.again:
		h.back = append(h.back, j)
	default:
		heap.Push(&h.ready, j)
	}
}

// tooEarly removes and returns the deliveries that must be sent back to the broker.
func (h *holding) tooEarly() []*job {
	back := h.back
	h.back = nil
	for _, j := range back {
		h.note(j, -1)
	}
	return back
}

// nextWorn removes and returns the first delivery to be renewed, or returns nil if there is none.
func (h *holding) nextWorn() *job {
	for len(h.worn) > 0 {
		j := h.worn[0]
		h.worn = h.worn[1:]
		if !j.worn {
			continue // its start time has come first
		}
		if j.index >= 0 {
			heap.Remove(&h.early, j.index)
		}
		h.note(j, -1)
		j.worn = false
		return j
	}
	return nil
}

// reconsider calls decide for every delivery whose start time is in doubt, and restores the order of the heap.
func (h *holding) reconsider(decide func(j *job)) {
	for _, j := range h.early {
		if j.doubt {
			decide(j)
		}
	}
	heap.Init(&h.early)
}

// ripen moves the deliveries whose start time has come to the list of ready ones. It returns the time until the
// next one is due, or 0 if none is waiting.
func (h *holding) ripen(now time.Time) (pause time.Duration) {
	for len(h.early) > 0 {
		if pause = h.early[0].at.Sub(now); pause > 0 {
			return pause
		}
		j := pop(&h.early)
		j.worn = false
		h.place(j, now)
	}
	return 0
}

// next removes and returns the delivery to be handled first.
func (h *holding) next() *job {
	j := pop(&h.ready)
	h.note(j, -1)
	return j
}

// empty removes all deliveries and returns them in delivery order.
func (h *holding) empty() (all []amqp.Delivery) {
	for _, some := range [][]*job{h.ready, h.early, h.aside, h.back} {
		for _, j := range some {
			all = append(all, j.raw)
		}
	}
	for _, j := range h.worn {
		if j.worn && j.index < 0 {
			all = append(all, j.raw)
		}
	}
	*h = holding{}
	slices.SortFunc(all, func(a, b amqp.Delivery) int { return cmp.Compare(a.DeliveryTag, b.DeliveryTag) })
	return all
}

// setAside keeps a delivery until release is called.
func (h *holding) setAside(j *job) {
	h.note(j, 1)
	h.aside = append(h.aside, j)
}

// release moves the deliveries that were set aside back to the other lists.
func (h *holding) release(now time.Time) {
	for _, j := range h.aside {
		h.place(j, now)
	}
	h.aside = nil
}

// oldest returns the time since which the first ready delivery has been waiting for a slot, or the zero time if
// none is ready.
func (h *holding) oldest() time.Time {
	if len(h.ready) == 0 {
		return time.Time{}
	}
	return h.ready[0].at
}

// busyIDs counts the running handlers by message id. A handler that outlives its delivery, because of the broker's
// consumer timeout or a lost connection, keeps its slot. Without busyIDs the broker's redelivery of the same
// message would take a second slot, and so on, until no slots were left for other messages.
type busyIDs struct {
	mu    *sync.Mutex
	count map[string]int
	ended chan struct{} // receives an element when a handler has ended
}

func newBusyIDs() busyIDs {
	return busyIDs{mu: &sync.Mutex{}, count: map[string]int{}, ended: make(chan struct{}, 1)}
}

// mark records that a message is being handled. If the message is a redelivery and an earlier delivery of it is
// still being handled, mark records nothing and returns false.
func (b *busyIDs) mark(d *Delivery) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.Redelivered && d.ID != "" && b.count[d.ID] > 0 {
		return false
	}
	b.count[d.ID]++
	return true
}

// unmark records that a handler has ended.
func (b *busyIDs) unmark(d *Delivery) {
	b.mu.Lock()
	if b.count[d.ID]--; b.count[d.ID] == 0 {
		delete(b.count, d.ID)
	}
	b.mu.Unlock()
	select {
	case b.ended <- struct{}{}:
	default: // the channel already has an element, and one is enough
	}
}

// job is a delivery and when its handler may start.
type job struct {
	raw    amqp.Delivery
	d      *Delivery
	sub    *subscription
	at     time.Time     // when the handler may start
	again  bool          // at that time the delivery is sent back to the broker, because it will still be too early
	doubt  bool          // the start time may turn out to be earlier: see lasthop.Decision
	worn   bool          // it must be renewed: see subscription.renew
	index  int           // in the heap; negative if it is in none
	offset time.Duration // of its due time's clock from this process's clock
}

// jobs is a heap ordered by start time, then by delivery tag.
type jobs []*job

func (s jobs) Len() int { return len(s) }
func (s jobs) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}
func (s jobs) Less(i, j int) bool {
	if s[i].at.Equal(s[j].at) {
		return s[i].raw.DeliveryTag < s[j].raw.DeliveryTag
	}
	return s[i].at.Before(s[j].at)
}

// Push implements heap.Interface.
func (s *jobs) Push(x any) {
	j, _ := x.(*job)
	j.index = len(*s)
	*s = append(*s, j)
}

// Pop implements heap.Interface.
func (s *jobs) Pop() any {
	old := *s
	last := old[len(old)-1]
	last.index = -1
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return last
}

func pop(s *jobs) *job {
	j, _ := heap.Pop(s).(*job)
	return j
}
