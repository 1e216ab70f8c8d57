package operations_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// status shows waiting messages and dead letters with their reasons. With AMQP alone, it lists what it could not check.
func TestCLIStatus(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		const destinations = "\ndestinations: [{queue: orders.expire}]\n"
		old := suite.CommandOn(t, v, "delay: {bucket: {radices: [2], resolution: 1h}}"+destinations)
		now := suite.CommandOn(t, v, "delay: {bucket: {radices: [2], resolution: 30m}, previous: [{radices: [2], resolution: 1h}]}"+destinations)
		for _, r := range []suite.Ran{
			old("apply"), now("apply"), now("send", "--queue", "orders.expire", "--delay", "30m", "--count", "3"),
			old("send", "--queue", "orders.expire", "--delay", "1h"), now("send", "--queue", "orders.expire", "--count", "2"),
		} {
			if r.Code != 0 {
				t.Fatalf("got %v, want exit code 0", r)
			}
		}
		ch, err := v.Conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		for queue, p := range map[string]amqp.Publishing{
			"orders.expire.dead": {MessageId: "order-42", Headers: amqp.Table{
				amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: "orders.expire",
				amqpx.HeaderError: "card expired",
			}},
			"delay.parked": {MessageId: "order-43"},
		} {
			if err := ch.PublishWithContext(t.Context(), "", queue, true, false, p); err != nil {
				t.Fatalf("queue %s: %v", queue, err)
			}
		}
		suite.Known(t, v, "orders.expire.dead")
		suite.Known(t, v, "delay.parked")
		var s status.Status
		suite.Eventually(t, "the status counts every message", func() bool {
			r := now("status", "--json")
			if r.Code != 0 {
				t.Fatalf("status --json: got %v, want exit code 0", r)
			}
			s = status.Status{}
			if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
				t.Fatalf("the status is not JSON: %v\n%s", err, r)
			}
			return len(s.Layouts) == 2 && s.Layouts[0].Waiting.Ready == 3 && s.Layouts[1].Waiting.Ready == 1 &&
				s.Destinations[0].Waiting.Ready == 2 && s.Destinations[0].Dead.Messages == 1 && s.Parked.Messages == 1
		})
		dead := s.Destinations[0].Dead
		if !s.Layouts[1].Earlier {
			t.Errorf("the second layout: got %+v, want Earlier = true", s.Layouts[1])
		}
		if s.Layouts[1].Drained() {
			t.Errorf("the second layout: got %+v, want it not drained", s.Layouts[1])
		}
		switch {
		case len(dead.Groups) != 1:
			t.Errorf("got %d groups of dead letters, want 1: %+v", len(dead.Groups), dead.Groups)
		case dead.Groups[0].Error != "card expired":
			t.Errorf("the dead letter's error is %q, want card expired", dead.Groups[0].Error)
		}
		if reason := s.Parked.Groups[0].Reason; reason != "parked" {
			t.Errorf("the parked message's reason is %q, want parked", reason)
		}
		if d := s.Layouts[0].Delays; len(d) != 1 || time.Duration(d[0].TTL) != 30*time.Minute || s.DueSoon[2].OnBroker == nil || *s.DueSoon[2].OnBroker != 3 {
			t.Errorf("the current layout: got delays %+v and due soon %+v, want one queue of 30m and 3 messages on the broker", d, s.DueSoon)
		}
		// The status counts new queues over AMQP until the management API does, whose counts are up to 10 s old.
		var r suite.Ran
		suite.Eventually(t, "status shows that the earlier layout has not drained", func() bool {
			r = now("status")
			return strings.Contains(r.Stdout, "earlier, not drained")
		})
		if r.Code != 0 {
			t.Errorf("status: got %v, want exit code 0", r)
		}
		for _, want := range []string{"DEAD LETTERS in orders.expire.dead: 1", "card expired", "none", "PARKED in delay.parked: 1"} {
			if !strings.Contains(r.Stdout, want) {
				t.Errorf("status: got %s, want Stdout containing %q", r, want)
			}
		}
		r = now("status", "--amqp-only")
		if r.Code != 2 || !strings.Contains(r.Stdout, "NOT CHECKED\n") || !strings.Contains(r.Stdout, "management: ") {
			t.Errorf(`status --amqp-only: got %v, want exit code 2, and "NOT CHECKED" and "management: " in the output`, r)
		}
	})
}
