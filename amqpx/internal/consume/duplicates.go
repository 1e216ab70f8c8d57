package consume

import "sync"

// busyIDs counts the running handlers by message id. A handler that outlives its delivery, because of the broker's
// consumer timeout or a lost connection, keeps its slot. Without busyIDs, the broker's redelivery of the same message
// would occupy a second slot, and so on, until no slots were left for other messages.
type busyIDs struct {
	mu    *sync.Mutex
	count map[string]int
	ended chan struct{} // receives an element when a handler has returned
}

func newBusyIDs() busyIDs {
	return busyIDs{mu: &sync.Mutex{}, count: map[string]int{}, ended: make(chan struct{}, 1)}
}

// mark records that a message is being handled. If the message is a redelivery and an earlier delivery of it is still
// being handled, mark records nothing and returns false. It never refuses a message without an id.
func (b *busyIDs) mark(d *Delivery) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.Redelivered && d.ID != "" && b.count[d.ID] > 0 {
		return false
	}
	b.count[d.ID]++
	return true
}

// unmark records that a handler has returned.
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
