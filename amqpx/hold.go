package amqpx

import (
	"cmp"
	"container/heap"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// holding buffers deliveries that have not been passed to a handler. None of them takes a
// handler's slot. The broker bounds their number by the prefetch. One goroutine uses it, that
// of the intake.
type holding struct {
	early jobs   // for their instant
	ready jobs   // for a slot
	aside []*job // while another delivery of the same message is being handled here
	back  []*job // to go back to the broker
	worn  []*job // to be renewed, in the order of their arrival; those for their instant are in early too

	count, bytes int // of all
}

// jobOverhead is what a delivery takes in memory besides its body.
const jobOverhead = 1 << 10

func (h *holding) note(j *job, n int) {
	h.count += n
	h.bytes += n * (len(j.raw.Body) + jobOverhead)
}

// add takes in a delivery.
func (h *holding) add(j *job, now time.Time) {
	h.note(j, 1)
	if j.worn {
		h.worn = append(h.worn, j)
		if !j.at.After(now) { // it begins when it is renewed
			return
		}
	}
	h.place(j, now)
}

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

// tooEarly removes the messages that go back to the broker.
func (h *holding) tooEarly() []*job {
	back := h.back
	h.back = nil
	for _, j := range back {
		h.note(j, -1)
	}
	return back
}

// nextWorn removes the first message that is to be renewed; nil if there is none.
func (h *holding) nextWorn() *job {
	for len(h.worn) > 0 {
		j := h.worn[0]
		h.worn = h.worn[1:]
		if !j.worn {
			continue // its instant has come
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

// reconsider decides again about the messages that are held in doubt.
func (h *holding) reconsider(decide func(j *job)) {
	for _, j := range h.early {
		if j.doubt {
			decide(j)
		}
	}
	heap.Init(&h.early)
}

// ripen moves the messages whose instant has come among those that wait for a slot, and
// returns how long the next one still has to wait; 0 if there is none.
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

// next removes the message that is to begin first.
func (h *holding) next() *job {
	j := pop(&h.ready)
	h.note(j, -1)
	return j
}

// empty removes all messages, and returns them in the order in which they were handed out.
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

// setAside keeps a message until release.
func (h *holding) setAside(j *job) {
	h.note(j, 1)
	h.aside = append(h.aside, j)
}

// release puts the messages that were set aside back among those that wait.
func (h *holding) release(now time.Time) {
	for _, j := range h.aside {
		h.place(j, now)
	}
	h.aside = nil
}

// oldest returns since when the first of those that wait for a slot could have begun;
// zero if none does.
func (h *holding) oldest() time.Time {
	if len(h.ready) == 0 {
		return time.Time{}
	}
	return h.ready[0].at
}

// busyIDs are the ids of messages that are being handled. A handler that outlives
// its delivery (the broker's consumer timeout, a lost connection) keeps its slot;
// without this the broker's next delivery of the message would take another, and so
// on until there are none left for other messages.
type busyIDs struct {
	mu    *sync.Mutex
	count map[string]int
	ended chan struct{} // gets an element when a handler has ended
}

func newBusyIDs() busyIDs {
	return busyIDs{mu: &sync.Mutex{}, count: map[string]int{}, ended: make(chan struct{}, 1)}
}

// mark records that a message is handled. It reports false, and records nothing, for
// one that is delivered again while it is.
func (b *busyIDs) mark(d *Delivery) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.Redelivered && d.ID != "" && b.count[d.ID] > 0 {
		return false
	}
	b.count[d.ID]++
	return true
}

func (b *busyIDs) unmark(d *Delivery) {
	b.mu.Lock()
	if b.count[d.ID]--; b.count[d.ID] == 0 {
		delete(b.count, d.ID)
	}
	b.mu.Unlock()
	select {
	case b.ended <- struct{}{}:
	default: // one stands for all
	}
}

// job is a message on its way to its handler.
type job struct {
	raw    amqp.Delivery
	d      *Delivery
	sub    *subscription
	at     time.Time     // when the handler may begin
	again  bool          // it goes back to the broker at that instant: it is still too early
	doubt  bool          // the instant may be earlier: see lasthop.Decision
	worn   bool          // it is to be renewed: see renew
	index  int           // in the heap; negative for none
	offset time.Duration // of the clock of its due instant
}

// jobs is a heap by the instant at which each may begin.
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

// Push is container/heap's.
func (s *jobs) Push(x any) {
	j, _ := x.(*job)
	j.index = len(*s)
	*s = append(*s, j)
}

// Pop is container/heap's.
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
