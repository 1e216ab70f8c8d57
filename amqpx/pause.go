package amqpx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
)

// PauseMode says whether a paused consumer stays at its queue.
type PauseMode string

// Modes of PauseConsuming.
const (
	// PauseHandBack cancels the consumer on the broker. Messages that no handler has started on, including
	// messages that are held until their due time, go back to the queue for other processes. If the queue has a
	// single active consumer, another consumer becomes the active one, and after the pause this one waits behind
	// it.
	PauseHandBack PauseMode = "hand-back"
	// PauseKeepPlace keeps the consumer on the broker together with the messages delivered to it, at most Prefetch
	// of them, but starts no handlers. A single active consumer stays the active one, so no other consumer takes
	// over and the order of messages is kept. Use it for short pauses: after the broker's consumer_timeout, 30
	// minutes by default, the broker takes these messages back and redelivers them, which counts towards a quorum
	// queue's delivery limit.
	PauseKeepPlace PauseMode = "keep-place"
)

// PauseConsuming stops this client's consumers of a queue from starting handlers until ResumeConsuming is called.
// It applies to running consumers and to those that start later. Calling it again with another mode replaces the
// mode. Running handlers finish, and their messages are acknowledged, retried or dead-lettered as usual. Other
// processes, and other clients in this process, are not affected. In a pause, Stats shows ConsumerPaused, which
// Health does not report as a problem. To pause the tasks of package schedule in all processes, see
// schedule.Store's Pause.
//
// Errors: ErrConfig for an unknown mode, and the errors with which Consume refuses the queue's name.
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

// ResumeConsuming ends a pause. It does nothing if the queue is not paused.
func (c *Client) ResumeConsuming(queue string) {
	c.pauses.change(func(of map[string]PauseMode) { delete(of, queue) })
}

// pauses holds the paused queues of a client.
type pauses struct {
	mu  sync.Mutex // serializes changes
	now atomic.Pointer[pausing]
}

// pausing is an immutable set of paused queues.
type pausing struct {
	of      map[string]PauseMode
	changed chan struct{} // closed when another set replaces this one
}

func newPauses() *pauses {
	p := &pauses{}
	p.now.Store(&pausing{changed: make(chan struct{})})
	return p
}

// change replaces the current set by a copy that do has changed.
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

// paused returns the consumer's pause mode, empty if it is not paused, and a channel that is closed when that may
// have changed.
func (k *consumer) paused() (PauseMode, <-chan struct{}) {
	p := k.c.pauses.now.Load()
	return p.of[k.queue], p.changed
}

// errPaused ends the intake of a consumer that is paused with PauseHandBack.
var errPaused = errors.New("paused")

// errResumed is the reason for not consuming while a consumer starts again after a pause.
var errResumed = errors.New("its pause has ended, and it is not at its queue again yet")

// awaitResume waits until the consumer is not paused with PauseHandBack, or ctx ends.
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
