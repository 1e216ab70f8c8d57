package snapshot_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If a connection is lost, the snapshot contains the data that was read before. The lost connection does not count as
// an alarm.
func TestTakeWhereAConnectionEnds(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{})
			defer srv.Close()
			srv.Deny("", amqptest.PermissionWrite, `^amq\.default$`)
			srv.CutAt("basic.publish", 2) // the first publish tests the permission
			cfg := doctor.Config{Roles: []doctor.Role{doctor.RoleConsumer}}
			cfg.Want.Destinations = []topology.Destination{{Queue: "q"}}
			snap, err := snapshot.Take(t.Context(), cfg, snapshot.Source{
				Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() },
			})
			if err != nil || len(snap.Denied) != 1 {
				t.Errorf("Take: got error %v and %+v, want no error and one denied access", err, snap)
			}
		})
	}
}

// Take measures the clock of each node, even if one of the nodes does not answer.
func TestTakeOfSeveralNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := snapshot.Source{}
		for _, address := range []string{"n1:5672", "n2:5672"} {
			srv := amqptest.NewServer(amqptest.Options{})
			t.Cleanup(srv.Close)
			src.Nodes = append(src.Nodes, snapshot.Node{Address: address, Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }})
		}
		src.Dial = src.Nodes[0].Dial
		src.Nodes = append(src.Nodes, snapshot.Node{Address: "n3:5672", Dial: func(context.Context) (*amqp.Connection, error) { return nil, errors.New("no route") }})
		snap, err := snapshot.Take(t.Context(), doctor.Config{Roles: []doctor.Role{}}, src)
		if err != nil || len(snap.Clocks) != 2 || snap.Clocks[0].Node != "n1:5672" || snap.Clocks[1].Node != "n2:5672" {
			t.Fatalf(`Take: got error %v and the clocks %+v, want no error and the clocks of n1:5672 and n2:5672`, err, snap.Clocks)
		}
		if c := snap.Clocks[1]; c.Low > 0 || c.High < 0 || c.Resolution().Seconds() > 0.01 {
			t.Errorf("got the clock %+v, want Low <= 0, High >= 0 and a resolution of at most 10ms", c)
		}
		if !slices.ContainsFunc(snap.Unchecked, func(u doctor.Unchecked) bool {
			return u.Area == doctor.AreaClock && strings.Contains(u.Why, "n3:5672") && strings.Contains(u.Why, "no route")
		}) {
			t.Errorf(`got Unchecked = %+v, want the clock of n3:5672 with the reason "no route"`, snap.Unchecked)
		}
	})
}
