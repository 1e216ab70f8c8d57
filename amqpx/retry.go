package amqpx

import (
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
)

// Reject returns an error for a handler to return, so that the message is dead-lettered immediately, no matter how many
// attempts it has had. If err is nil, the recorded error is "rejected".
func Reject(err error) error {
	if err == nil {
		err = errors.New("rejected")
	}
	return &consume.RejectError{Err: err}
}

// IsRejected reports whether err is or wraps an error that Reject returned. It is for wrappers of a Handler that keep
// their own record of what happens to a message.
func IsRejected(err error) bool {
	_, ok := errors.AsType[*consume.RejectError](err)
	return ok
}

// RetryIn returns an error for a handler to return, so that the message is retried after d instead of after the
// consumer's back-off. The attempt counts towards MaxAttempts. A d below 10 ms, such as 0, becomes 1 s. If the strategy
// does not support exactly this delay, its next longer one is used or, if there is none, its longest one. (The ttl
// strategy supports only the declared delays, the bucket strategy every delay up to MaxDelay.) If err is nil, the
// recorded error is "retry".
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("retry")
	}
	return &consume.RetryInError{Delay: consume.UsableDelay(d), Err: err}
}

// Snooze returns an error for a handler to return, so that the message is delivered again after d, for example because
// a condition that it needs is not met yet. A snooze does not count as an attempt, so a message can be snoozed any
// number of times. A handler can check Delivery.Snoozes to limit the number. A d below 10 ms, such as 0, becomes 1 s.
// RetryIn describes what happens if the strategy does not support the delay.
func Snooze(d time.Duration) error { return &consume.SnoozeError{Delay: consume.UsableDelay(d)} }

// IsSnoozed reports whether err is or wraps an error that Snooze returned. It is for wrappers of a Handler that keep
// their own record of what happens to a message.
func IsSnoozed(err error) bool {
	_, ok := errors.AsType[*consume.SnoozeError](err)
	return ok
}

// Requeue returns an error for a handler to return, so that the message goes back to its queue unchanged (basic.nack
// with requeue). Nothing is published, no attempt is counted, and the message keeps its properties and headers. If err
// is nil, the recorded error is "requeued".
//
// The message is requeued after a random pause of 0.5 to 1 s. The pause doubles with each earlier delivery, up to 10 s.
// In a classic queue it does not grow, because the broker does not count deliveries there. During the pause the message
// counts towards the consumer's prefetch. Classic queues, and quorum queues since RabbitMQ 4.0, put it back in its old
// position, so it is delivered again before later messages. Therefore retry a message that fails because of its
// content, instead of requeueing it. Before RabbitMQ 4.3, a quorum queue counts a requeue as a delivery, and after more
// than 200 deliveries the message is dead-lettered. Since 4.3 it does not count requeues.
func Requeue(err error) error {
	if err == nil {
		err = errors.New("requeued")
	}
	return &consume.RequeueError{Err: err}
}

// IsRequeued reports whether err is or wraps an error that Requeue returned. It is for wrappers of a Handler that keep
// their own record of what happens to a message.
func IsRequeued(err error) bool {
	_, ok := errors.AsType[*consume.RequeueError](err)
	return ok
}
