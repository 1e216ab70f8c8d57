package amqpx

import (
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
)

// PauseMode says whether a paused consumer stays registered on the broker.
type PauseMode string

// Modes of PauseConsuming.
const (
	// PauseHandBack cancels the consumer on the broker. Messages that no handler has started on, including messages
	// that are held until their due time, go back to the queue for other processes. If the queue has a single active
	// consumer, another consumer becomes the active one, and after the pause this consumer has to wait until the other
	// one stops.
	PauseHandBack PauseMode = "hand-back"
	// PauseKeepPlace keeps the consumer on the broker together with the messages delivered to it, at most Prefetch of
	// them, but starts no handlers. A single active consumer stays the active one, so no other consumer takes over and
	// the order of messages is kept. Use it for short pauses: after the broker's consumer_timeout, 30 minutes by
	// default, the broker requeues these messages and redelivers them. Before RabbitMQ 4.3, that counts towards a
	// quorum queue's delivery limit.
	PauseKeepPlace PauseMode = "keep-place"
)

// PauseConsuming stops this client's consumers of a queue from starting handlers until ResumeConsuming is called. It
// applies to running consumers and to those that start later. Calling it again with another mode replaces the mode.
// Running handlers finish, and their messages are acknowledged, retried or dead-lettered as usual. Other processes, and
// other clients in this process, are not affected. During a pause, Stats shows ConsumerPaused, which Health does not
// report as a problem. To pause the tasks of package schedule in all processes, see schedule.Store's Pause.
//
// Errors: ErrConfig for an unknown mode, and the errors that Consume returns for an invalid queue.
func (c *Client) PauseConsuming(queue string, mode PauseMode) error {
	if err := c.opened(); err != nil {
		return err
	}
	if mode != PauseHandBack && mode != PauseKeepPlace {
		return fmt.Errorf("%w: pause mode %q; expected %q or %q", ErrConfig, mode, PauseHandBack, PauseKeepPlace)
	}
	if err := c.consumable(queue); err != nil {
		return err
	}
	c.consumers.Pause(queue, consume.PauseMode(mode))
	return nil
}

// ResumeConsuming ends a pause. It does nothing if the queue is not paused.
func (c *Client) ResumeConsuming(queue string) {
	c.consumers.Resume(queue)
}
