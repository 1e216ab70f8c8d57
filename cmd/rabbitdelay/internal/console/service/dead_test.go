package service

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The audit log describes a job's request. Viewers see the description without the values of headers.
func TestDetail(t *testing.T) {
	q := request{Requeue: &Requeue{Queue: "q.dead", To: topology.Destination{Queue: "mail"}, Limit: 40, Rate: 2.5, Filter: inspect.DeadLetterFilter{
		Reasons: []string{"rejected", "attempts"}, IDs: []string{"a"}, Destinations: []string{"mail"}, Tasks: true, Error: "503",
		Header: "tenant", HeaderValue: "blue", OlderThan: time.Hour, NewerThan: 48 * time.Hour,
	}}}
	text, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	for want, got := range map[string]string{"tenant": q.words(false), "tenant=\"blue\"": detailOf(string(text))} {
		want = "at most 40 messages to mail, 2.5 a second with reason rejected or attempts, id a, destination mail, a task, " +
			"error 503, header " + want + ", older than 1h, newer than 2d"
		if got != want {
			t.Errorf("got %q\nwant %q", got, want)
		}
	}
	for want, values := range map[string]bool{"header=tenant: cancel; at most 3 tasks": false, "header=tenant=\"blue\": cancel; at most 3 tasks": true} {
		q := request{Bulk: &bulkRequest{schedule.Filter{Header: "tenant", HeaderValue: "blue"}, change.Action{Kind: change.Cancel}, 3}}
		if got := q.words(values); got != want {
			t.Errorf("got %q\nwant %q", got, want)
		}
	}
}
