package taskview

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// UnknownDestinations counts pending tasks by destination if the configuration rejects the destination. An exchange
// with another routing key is another destination.
func TestUnknownDestinations(t *testing.T) {
	list := func(d topology.Destination) error {
		if d == (topology.Destination{Queue: "a"}) || d == (topology.Destination{Exchange: "x", RoutingKey: "known"}) {
			return nil
		}
		return errors.New("not listed")
	}
	s, db := openStore(t, schedule.Config{Destination: list})
	_, err := db.ExecContext(t.Context(), `INSERT INTO rabbitdelay_tasks (id, queue, exchange, routing_key, due_at) VALUES
		('1', 'a', '', '', 0), ('2', 'b', '', '', 0), ('3', 'b', '', '', 0), ('4', '', 'x', 'known', 0), ('5', '', 'x', 'other', 0)`)
	check(t, err)
	got, err := s.UnknownDestinations(t.Context())
	check(t, err)
	want := []DestinationCount{{topology.Destination{Queue: "b"}, 2}, {topology.Destination{Exchange: "x", RoutingKey: "other"}, 1}}
	slices.SortFunc(got, func(a, b DestinationCount) int { return int(b.Pending - a.Pending) })
	if !slices.Equal(got, want) {
		t.Errorf("UnknownDestinations: got %+v, want %+v", got, want)
	}
	all, _ := openStore(t, schedule.Config{})
	check(t, all.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "1", Queue: "b", DeliverAt: time.Now()}))
	if got, err := all.UnknownDestinations(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("UnknownDestinations without Config.Destination: got %+v, %v, want none and no error", got, err)
	}
}
