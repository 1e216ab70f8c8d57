package status_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live/snapshot"
)

// Who may only look is told what waits, and not what he may not do; and a second look
// says nothing of the clock, which the first has measured.
func TestTakeByWhoMayOnlyLook(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	conn, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	defer srv.Deny("", amqptest.PermissionConfigure, "^[^a]")()
	defer srv.Deny("", amqptest.PermissionWrite, "^[^a]")()
	src := status.Source{
		Want:   doctor.Config{Want: topology.Topology{Destinations: []topology.Destination{{Queue: "q"}}}},
		Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }},
	}
	for range 2 {
		s, err := status.Take(t.Context(), src)
		if err != nil || s.Broker == nil {
			t.Fatalf("%v, %+v", err, s)
		}
		if slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return strings.HasPrefix(f.ID, "permission-") }) {
			t.Errorf("findings %+v", s.Findings)
		}
		if src.Before != nil && (slices.ContainsFunc(s.Unseen, func(u doctor.Unseen) bool { return u.Area == doctor.AreaClock }) || strings.Contains(strings.Join(s.Notes, "\n"), "clock")) {
			t.Errorf("the second look: %+v, %v", s.Unseen, s.Notes)
		}
		src.Before = &s
	}
}
