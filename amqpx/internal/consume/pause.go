package consume

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
)

// PauseMode says whether a paused consumer stays registered on the broker. Package amqpx documents the values.
type PauseMode string

// Modes of Pause.
const (
	PauseHandBack  PauseMode = "hand-back"
	PauseKeepPlace PauseMode = "keep-place"
)

// Pause stops the consumers of a queue from starting handlers until Resume is called.
func (a *Consumers) Pause(queue string, mode PauseMode) {
	a.pauses.change(func(of map[string]PauseMode) { of[queue] = mode })
}

// Resume ends a pause. It does nothing if the queue is not paused.
func (a *Consumers) Resume(queue string) {
	a.pauses.change(func(of map[string]PauseMode) { delete(of, queue) })
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

// change copies the current set, lets the function do modify the copy, and makes the copy the current set.
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

// paused returns the consumer's pause mode, or "" if it is not paused, and a channel that is closed when the mode may
// have changed.
func (k *Consumer) paused() (PauseMode, <-chan struct{}) {
	p := k.all.pauses.now.Load()
	return p.of[k.set.Queue], p.changed
}

// errPaused stops the intake of a consumer that is paused with PauseHandBack.
var errPaused = errors.New("paused")

// errResumed is the reason that Stats shows while a consumer starts again after a pause.
var errResumed = errors.New("the pause has ended, but the consumer has not started to consume again yet")

// awaitResume waits until the consumer is not paused with PauseHandBack, or ctx ends.
func (k *Consumer) awaitResume(ctx context.Context) {
	mode, changed := k.paused()
	if mode != PauseHandBack {
		return
	}
	for ; mode == PauseHandBack && ctx.Err() == nil; mode, changed = k.paused() {
		k.become(Paused, nil)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	k.down(errResumed)
}
