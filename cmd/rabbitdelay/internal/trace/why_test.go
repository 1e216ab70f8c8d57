package trace

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// TestWhy checks the explanation of every possible state of a message or a task.
func TestWhy(t *testing.T) {
	now := time.Unix(10_000, 0)
	past, future := now.Add(-time.Hour), now.Add(time.Hour)
	task := func(change func(*schedule.TaskRow)) *schedule.TaskRow {
		k := &schedule.TaskRow{Task: schedule.Task{ID: "1", Queue: "q", DeliverAt: past}, Status: schedule.StatusPending}
		change(k)
		return k
	}
	finished := func(s schedule.Status) *schedule.TaskRow {
		return task(func(k *schedule.TaskRow) { k.Status, k.FinishedAt, k.Attempts, k.LastError = s, now, 2, "no card" })
	}
	ahead := task(func(k *schedule.TaskRow) { k.DeliverAt, k.SentAt, k.ResendAt = future, past, future.Add(2*time.Minute) })
	forwarded := task(func(k *schedule.TaskRow) { k.Queue, k.Exchange, k.RoutingKey, k.SentAt = "", "events", "paid", past })
	const route = "delay.route.events:paid"
	sent := task(func(k *schedule.TaskRow) { k.SentAt = past })
	dead := func(reason string) []inspect.DeadLetter {
		return []inspect.DeadLetter{{Delivery: &amqpx.Delivery{Queue: "q.dead", Attempt: 5}, Reason: reason, Error: "no card", Died: past}}
	}
	for want, c := range map[string]Trace{
		"it is done: its effect was committed at 1970-01-01T02:46:40.000Z":                         {Task: finished(schedule.StatusDone)},
		"it was cancelled at 1970-01-01T02:46:40.000Z, before its effect, the last error: no card": {Task: finished(schedule.StatusCancelled)},
		"it was due at 1970-01-01T01:46:40.000Z, was valid for 0s after that, and expired at":      {Task: finished(schedule.StatusExpired)},
		"it failed at 1970-01-01T02:46:40.000Z after 2 attempts: no card":                          {Task: finished(schedule.StatusFailed)},
		"a handler of q is working on it, with a lease until 1970-01-01T03:46:40": {Task: task(func(k *schedule.TaskRow) {
			k.Status = schedule.StatusRunning
		}), Effects: []taskview.Effect{{Queue: "q", LeaseUntil: future}}},
		"its lease has expired":                     {Task: task(func(k *schedule.TaskRow) { k.Status = schedule.StatusRunning })},
		"waits in the table until a relay sends it": {Task: task(func(k *schedule.TaskRow) { k.DeliverAt = future })},
		"its message was sent to the broker at 1970-01-01T01:46:40.000Z and waits there; if the message is lost, a relay sends it again from 1970-01-01T03:48:40.000Z on": {
			Task: ahead,
		},
		"its message was sent to the broker at 1970-01-01T01:46:40.000Z and is lost, because no queue has a message that could be this one; a relay sends it again from 1970-01-01T03:48:40.000Z on": {
			Task: ahead, Nowhere: true,
		},
		"could not be sent to the broker: no such queue":               {Task: task(func(k *schedule.TaskRow) { k.LastError = "no such queue" })},
		"was never sent to the broker: no relay runs on this database": {Task: task(func(*schedule.TaskRow) {}), Relays: []taskview.Relay{}},
		"was never sent to the broker: which relays run":               {Task: task(func(*schedule.TaskRow) {})},
		"never sent to the broker: no heartbeat since " + past.UTC().Format(time.RFC3339) + "; the process has stopped, hangs": {
			Task: task(func(*schedule.TaskRow) {}), Relays: []taskview.Relay{{Name: "shop:42", Seen: past}},
		},
		"waits in the table until a relay sends it; no heartbeat since " + past.UTC().Format(time.RFC3339) +
			"; the process has stopped, hangs or is disconnected; check host shop, pid 42": {
			Task:   task(func(k *schedule.TaskRow) { k.DeliverAt = future }),
			Relays: []taskview.Relay{{Name: "shop:42", Seen: past}},
		},
		"it was due at 1970-01-01T01:46:40.000Z and waits in the table: q has been paused since 1970-01-01T01:46:40.000Z by anna; rabbitdelay tasks resume": {
			Task: task(func(*schedule.TaskRow) {}), Held: &schedule.DestinationState{Queue: "q", PausedAt: past, PausedBy: "anna"},
		},
		"it is due at 1970-01-01T03:46:40.000Z and waits in the table: q has been paused since": {
			Task: task(func(k *schedule.TaskRow) { k.DeliverAt = future }), Held: &schedule.DestinationState{Queue: "q", PausedAt: past},
		},
		"waits in the table: q is limited (at most 5 a second, in bursts of up to 1), and 7 due tasks wait": {
			Task: task(func(*schedule.TaskRow) {}), Held: &schedule.DestinationState{Queue: "q", PerSecond: 5, Burst: 1, Busy: true, Waiting: 7},
		},
		"a moment ago; a relay is about to send it": {Task: task(func(k *schedule.TaskRow) { k.DeliverAt = now })},
		"1 attempt failed, the last error: no card": {Task: task(func(k *schedule.TaskRow) {
			k.SentAt, k.Attempts, k.LastError = past, 1, "no card"
		})},
		"the queue q does not exist": {Task: sent, Destination: &status.Destination{Name: "q"}},
		"the queue q has no consumer, and 3 ready messages": {
			Task: sent, Destination: &status.Destination{Name: "q", Exists: true, Consumers: new(int64), Waiting: status.Count{Ready: 3}},
		},
		"3 messages are ready in the queue q before 1 consumer": {
			Task:        sent,
			Destination: &status.Destination{Name: "q", Exists: true, Consumers: new(int64(1)), Waiting: status.Count{Ready: 3}},
		},
		"its message is in transit, held by a consumer, or lost":     {Task: sent},
		"its message is in transit, held by a consumer, or lost; if": {Task: forwarded, Route: route},
		`2 messages wait in the route queue delay.route.events:paid, because the exchange events has no route for the routing key "paid"`: {
			Task: forwarded, Route: route, Destination: &status.Destination{Name: "events:paid", Queue: route, Exchange: true, Exists: true, Waiting: status.Count{Unacked: new(int64(2)), Leaving: new(int64)}},
		},
		"or it waits in the route queue delay.route.events:paid, because the exchange events has no route for it, which only the management API shows (broker.management_url)": {
			Task: forwarded, Route: route, Unchecked: []doctor.Unchecked{{Area: doctor.AreaManagement}},
		},
		"lost, or it waits in the route queue delay.route.events:paid": {
			Task: forwarded, Route: route, Destination: &status.Destination{Name: "events:paid", Queue: route, Exchange: true, Exists: true},
		},
		"it may be among the messages of the route queue delay.route.events:paid, for which the exchange has no route": {
			Stuck: []status.Destination{{Queue: route}},
		},
		"it may be in one of 2 route queues whose messages wait": {Stuck: make([]status.Destination, 2)},
		"it may wait in a route queue, because its exchange has no route for it, which only the management API shows (broker.management_url)": {
			Unchecked: []doctor.Unchecked{{Area: doctor.AreaManagement}},
		},
		"its effect in q was committed at":                                      {Records: []idempotency.Record{{Scope: "q", ProcessedAt: past}}},
		"because a guard (OnlyIf or When) was not met":                          {Records: []idempotency.Record{{Scope: "q", Guarded: true}}},
		"its handler rejected it, the last error: no card; rabbitdelay requeue": {DeadLetters: dead(inspect.ReasonRejected)},
		"its 5 attempts failed":                                                 {Task: sent, DeadLetters: dead(inspect.ReasonAttempts)},
		"the broker took it out of its queue (maxlen)":                          {DeadLetters: dead(inspect.ReasonMaxLen)},
		"the reason is not recorded":                                            {DeadLetters: dead("")},
		"it is parked in q.dead since":                                          {DeadLetters: dead(inspect.ReasonParked)},
		"nothing is known about this id; a consumer may hold it":                {},
		"it may be among the messages of the queue q, which is not searched":    {Unsearched: []string{"q"}},
		"it may be in one of 2 destinations' queues that are not empty":         {Unsearched: []string{"q", "p"}},
		"nothing is known about this id in the parts that could be inspected":   {Searched: []Searched{{Messages: 5, Sampled: 1}}},
		"nothing is known about this id in the parts that could be inspected; it may be among the mess": {
			Unchecked: []doctor.Unchecked{{}}, Waiting: []status.Delay{{Queue: "delay.bucket.1m"}},
		},
	} {
		c.At = now
		if got := c.Explain(); !strings.Contains(got, want) {
			t.Errorf("Explain returned\n%s, want it to contain\n%s", got, want)
		}
	}
	lying := dead(inspect.ReasonParked)
	lying[0].Destination = topology.Destination{Exchange: "x", RoutingKey: "k"}
	if got := (&Trace{DeadLetters: lying}).Explain(); !strings.Contains(got, "its destination x:k;") {
		t.Errorf(`Explain returned %q, want "its destination x:k;" in it`, got)
	}
}
