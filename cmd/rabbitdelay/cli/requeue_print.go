package cli

import (
	"cmp"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// requeued is the result of requeue.
type requeued struct {
	Queue  string `json:"queue"`
	DryRun bool   `json:"dry_run,omitempty"`
	amqpx.RequeueReport
	Seconds float64 `json:"seconds"`
}

// outcomes in the order in which they are told, and in words.
var outcomes = []struct {
	is         amqpx.RequeueOutcome
	did, would string
}{
	{amqpx.RequeueSent, "sent to", "would be sent to"},
	{amqpx.RequeueRevived, "revived, and sent by a relay to", "would be revived, and sent by a relay to"},
	{amqpx.RequeueRemoved, "removed, because their tasks are over or were sent anew:", "would be removed, because their tasks are over or were sent anew:"},
	{amqpx.RequeueDiscarded, "discarded, of", "would be discarded, of"},
	{amqpx.RequeueStayed, "stayed, for", "would stay, for"},
}

func (r *requeueRun) tell(rep amqpx.RequeueReport, took time.Duration) error {
	a := r.a
	if a.JSON {
		return a.PrintJSON(requeued{r.o.Queue, r.o.DryRun, rep, seconds(took)})
	}
	dry := ""
	if r.o.DryRun {
		dry = "dry run: "
	}
	a.Printf("%s%s: looked at %s of %s messages in %.2f s, %s chosen\n", dry, shown.Line(r.o.Queue), grouped(int64(rep.Looked)), grouped(int64(rep.Total)), took.Seconds(), grouped(int64(rep.Chosen)))
	slices.SortStableFunc(rep.Results, func(x, y amqpx.RequeueResult) int { return cmp.Compare(y.Count, x.Count) })
	for _, o := range outcomes {
		for _, x := range rep.Results {
			if x.Outcome != o.is {
				continue
			}
			verb := o.did
			if r.o.DryRun {
				verb = o.would
			}
			a.Printf("%9s %s %s", grouped(int64(x.Count)), verb, shown.Line(cmp.Or(x.Destination, "an unknown destination")))
			if x.Why != "" {
				a.Printf(": %s", shown.Line(x.Why))
			}
			a.Printf("\n")
		}
	}
	r.notes(rep)
	return nil
}

// notes say what is not a message's fate.
func (r *requeueRun) notes(rep amqpx.RequeueReport) {
	if rep.Again > 0 {
		r.a.Notef("note: %s died again after they were sent, and stayed", grouped(int64(rep.Again)))
	}
	if rep.CountsDeliveries && rep.DeliveryLimit > 0 && rep.PutBack > 0 {
		r.a.Notef("note: the %s that were put back have one delivery less of the %d that this queue allows before it drops a message", grouped(int64(rep.PutBack)), rep.DeliveryLimit)
	}
	switch {
	case rep.Moved > 0 && rep.DeliveryLimit < 0:
		r.a.Notef("note: %s that stayed went to the queue's end, as copies: before RabbitMQ 4.3 a message that is put back counts towards the queue's delivery limit, and only the management API tells it (broker.management_url)", grouped(int64(rep.Moved)))
	case rep.Moved > 0:
		r.a.Notef("note: %s were near the queue's delivery limit and went to its end, as copies", grouped(int64(rep.Moved)))
	}
}
