package amqpx

import (
	"time"
)

// process runs the handler on one message and settles the message. It holds a slot while the handler runs, and
// after a success until the message is acknowledged. The retry or dead letter of a failed message is published
// without a slot, because the broker may take long to confirm it.
func (k *consumer) process(j *job) {
	ctx := k.c.hooks.handleStart(k.handlers, j.d)
	end := HandleEnd{Delivery: j.d, Panicked: true}
	start := time.Now()
	if since := j.d.DueSince(); !since.IsZero() {
		end.Lateness = start.Sub(since)
	}
	k.begunAt.Store(start.UnixNano())
	k.lateness.Store(int64(end.Lateness))
	v := ownVerdict(askRetry, "", errGoexit)
	defer func() { // runs even if the handler calls runtime.Goexit
		end.Duration, end.Err = time.Since(start), v.err
		k.running.Add(-1)
		if j.sub.cancelled.Load() {
			k.overruns.put(j.d, v.text)
		}
		k.ids.unmark(j.d)
		k.handled.Add(1)
		if v.err == nil {
			defer func() { <-k.slots }()
		} else {
			k.failed.Add(1)
			<-k.slots
		}
		end.Outcome = k.settle(ctx, j, v)
		k.countCutOff(v, end.Outcome)
		k.c.hooks.handleEnd(ctx, end)
	}()
	v, end.Panicked = k.judge(ctx, j.d)
}

// countCutOff counts a handler whose message will be redelivered because the end of Close's context cut the
// handler off.
func (k *consumer) countCutOff(v verdict, outcome Outcome) {
	again := outcome == OutcomeLost || outcome == OutcomeRequeued && v.ask != askRequeue
	if again && k.c.forced.Err() != nil && !k.abandoned.Load() {
		k.c.abandoned.Add(1)
	}
}

// refuse sends back to the broker a message that arrived too early.
func (k *consumer) refuse(j *job) {
	k.settle(k.handlers, j, verdict{ask: askReturn, offset: j.offset})
}
