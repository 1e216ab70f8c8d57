package trace

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// The sentence for every state in which a message or a task may be.
func TestWhy(t *testing.T) {
	now := time.Unix(10_000, 0)
	past, future := now.Add(-time.Hour), now.Add(time.Hour)
	task := func(change func(*schedule.Task)) *schedule.Task {
		k := &schedule.Task{ID: "1", Queue: "q", Status: schedule.StatusPending, DeliverAt: past}
		change(k)
		return k
	}
	finished := func(s schedule.Status) *schedule.Task {
		return task(func(k *schedule.Task) { k.Status, k.FinishedAt, k.Attempts, k.LastError = s, now, 2, "no card" })
	}
	sent := task(func(k *schedule.Task) { k.SentAt = past })
	dead := func(reason string) []inspect.DeadLetter {
		return []inspect.DeadLetter{{Delivery: &amqpx.Delivery{Queue: "q.dead", Attempt: 5}, Reason: reason, Error: "no card", Died: past}}
	}
	for want, c := range map[string]Trace{
		"it has happened: its effect was committed at 1970-01-01T02:46:40.000Z": {Task: finished(schedule.StatusDone)},
		"it was cancelled at 1970-01-01T02:46:40.000Z":                          {Task: finished(schedule.StatusCancelled)},
		"its time was over": {Task: finished(schedule.StatusExpired)},
		"it failed at 1970-01-01T02:46:40.000Z after 2 attempts: no card":     {Task: finished(schedule.StatusFailed)},
		"a handler of q works on it, under a lease until 1970-01-01T03:46:40": {Task: task(func(k *schedule.Task) { k.Status = schedule.StatusRunning }), Effects: []schedule.Effect{{Queue: "q", LeaseUntil: future}}},
		"its lease is over":                                            {Task: task(func(k *schedule.Task) { k.Status = schedule.StatusRunning })},
		"it waits in the table":                                        {Task: task(func(k *schedule.Task) { k.DeliverAt = future })},
		"its message waits in the broker since":                        {Task: task(func(k *schedule.Task) { k.DeliverAt, k.SentAt = future, past })},
		"could not be sent to the broker: no such queue":               {Task: task(func(k *schedule.Task) { k.LastError = "no such queue" })},
		"was never sent to the broker: no relay runs on this database": {Task: task(func(*schedule.Task) {}), Relays: []schedule.Relay{}},
		"was never sent to the broker: which relays run":               {Task: task(func(*schedule.Task) {})},
		"never sent to the broker: no heartbeat since " + past.UTC().Format(time.RFC3339) + "; the process is stopped, hung":                                    {Task: task(func(*schedule.Task) {}), Relays: []schedule.Relay{{Name: "shop:42", Seen: past}}},
		"it waits in the table; no heartbeat since " + past.UTC().Format(time.RFC3339) + "; the process is stopped, hung or cut off; look at host shop, pid 42": {Task: task(func(k *schedule.Task) { k.DeliverAt = future }), Relays: []schedule.Relay{{Name: "shop:42", Seen: past}}},
		"a moment ago; a relay sends it next":                                         {Task: task(func(k *schedule.Task) { k.DeliverAt = now })},
		"1 attempt failed, the last error: no card":                                   {Task: task(func(k *schedule.Task) { k.SentAt, k.Attempts, k.LastError = past, 1, "no card" })},
		"the queue q does not exist":                                                  {Task: sent, Destination: &status.Destination{Name: "q"}},
		"the queue q has no consumer, and 3 ready messages":                           {Task: sent, Destination: &status.Destination{Name: "q", Exists: true, Waiting: status.Count{Ready: 3}}},
		"3 messages are ready in the queue q before 1 consumer":                       {Task: sent, Destination: &status.Destination{Name: "q", Exists: true, Consumers: 1, Waiting: status.Count{Ready: 3}}},
		"in a consumer's hands or lost":                                               {Task: sent},
		"its effect in q was committed at":                                            {Records: []idempotency.Record{{Scope: "q", ProcessedAt: past}}},
		"because a guard (OnlyIf or When) said no":                                    {Records: []idempotency.Record{{Scope: "q", Guarded: true}}},
		"its handler rejected it, the last error: no card; rabbitdelay requeue":       {Lying: dead(inspect.ReasonRejected)},
		"its 5 attempts failed":                                                       {Task: sent, Lying: dead(inspect.ReasonAttempts)},
		"the broker took it out of its queue (maxlen)":                                {Lying: dead(inspect.ReasonMaxLen)},
		"nothing says why":                                                            {Lying: dead("")},
		"it is parked in q.dead since":                                                {Lying: dead(inspect.ReasonParked)},
		"nothing is known of this id; or it is in a consumer's hands":                 {},
		"it may be among the messages of the queue q, which is not looked into":       {Unsearched: []string{"q"}},
		"it may be in one of 2 destinations' queues that are not empty":               {Unsearched: []string{"q", "p"}},
		"nothing is known of this id in what could be seen":                           {Searched: []Searched{{Messages: 5, Looked: 1}}},
		"nothing is known of this id in what could be seen; it may be among the mess": {Unseen: []doctor.Unseen{{}}, Waiting: []status.Delay{{Queue: "delay.bucket.1m"}}},
	} {
		c.At = now
		if got := c.Explain(); !strings.Contains(got, want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	lying := dead(inspect.ReasonParked)
	lying[0].Destination = topology.Destination{Exchange: "x", RoutingKey: "k"}
	if got := (&Trace{Lying: lying}).Explain(); !strings.Contains(got, "its destination x:k;") {
		t.Error(got)
	}
}
