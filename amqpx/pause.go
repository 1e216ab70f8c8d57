package amqpx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
)

// PauseMode is what becomes of a paused consumer's place at its queue.
type PauseMode string

// The modes there are.
const (
	// PauseHandBack takes the consumer off its queue: what no handler has begun, also what is
	// held until its instant, goes back to the queue for other processes. Of a queue with a
	// single active consumer another one becomes active, and after the pause this one waits
	// behind it.
	PauseHandBack PauseMode = "hand-back"
	// PauseKeepPlace keeps the consumer at its queue with what it was handed out, at most
	// Prefetch messages, and begins none of them. A single active consumer stays the active
	// one, so that nobody takes over and the order is kept. It is for short pauses: after the
	// broker's consumer_timeout, 30 minutes by default, the broker takes such messages away and
	// delivers them again, which counts towards a quorum queue's delivery limit.
	PauseKeepPlace PauseMode = "keep-place"
)

// PauseConsuming has the consumers of a queue, those of this client that run and those that
// begin later, begin no more handlers until ResumeConsuming; another mode takes the place of
// the one before. Handlers that run go on, and their messages are acknowledged, retried or
// dead-lettered as ever. Other processes, and other clients of this one, are not affected.
// Stats shows ConsumerPaused, which is no problem for Health. To pause the tasks of package
// schedule for all processes, see schedule.Store's Pause. Errors: ErrConfig for a mode that there
// is not, and those with which Consume refuses the queue's name.
func (c *Client) PauseConsuming(queue string, mode PauseMode) error {
	if mode != PauseHandBack && mode != PauseKeepPlace {
		return fmt.Errorf("%w: pause mode %q; expected %q or %q", ErrConfig, mode, PauseHandBack, PauseKeepPlace)
	}
	if err := c.consumable(queue); err != nil {
		return err
	}
	c.pauses.change(func(of map[string]PauseMode) { of[queue] = mode })
	return nil
}

// ResumeConsuming ends a pause. A consumer of a queue that is not paused goes on as it is.
func (c *Client) ResumeConsuming(queue string) {
	c.pauses.change(func(of map[string]PauseMode) { delete(of, queue) })
}

// pauses are the paused queues of a client.
type pauses struct {
	mu  sync.Mutex // of changes
	now atomic.Pointer[pausing]
}

type pausing struct {
	of      map[string]PauseMode
	changed chan struct{} // closed when another takes its place
}

func newPauses() *pauses {
	p := &pauses{}
	p.now.Store(&pausing{changed: make(chan struct{})})
	return p
}

func (p *pauses) change(do func(of map[string]PauseMode)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.now.Load()
	next := &pausing{map[string]PauseMode{}, make(chan struct{})}
	maps.Copy(next.of, was.of)
	do(next.of)
	p.now.Store(next)
	close(was.changed)
}

// paused returns how the consumer is paused, empty if it is not, and what is closed when that
// may have changed.
func (k *consumer) paused() (PauseMode, <-chan struct{}) {
	p := k.c.pauses.now.Load()
	return p.of[k.queue], p.changed
}

// errPaused ends an intake whose consumer hands back what it has.
var errPaused = errors.New("paused")

// errResumed is why a consumer is not consuming yet after a pause.
var errResumed = errors.New("its pause has ended, and it is not at its queue again yet")

// awaitResume waits until the consumer is to be at its queue, or ctx ends.
func (k *consumer) awaitResume(ctx context.Context) {
	mode, changed := k.paused()
	if mode != PauseHandBack {
		return
	}
	for ; mode == PauseHandBack && ctx.Err() == nil; mode, changed = k.paused() {
		k.become(ConsumerPaused, nil)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	k.down(errResumed)
}
