package snapshot_test

import (
	"context"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live/snapshot"
)

// What was seen before a connection ended is in the snapshot: its end is no alarm.
func TestTakeWhereAConnectionEnds(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{})
			defer srv.Close()
			srv.Deny("", amqptest.PermissionWrite, `^amq\.default$`)
			srv.CutAt("basic.publish", 2) // the first asks for the permission
			cfg := doctor.Config{Roles: []doctor.Role{doctor.RoleConsumer}}
			cfg.Want.Destinations = []topology.Destination{{Queue: "q"}}
			snap, err := snapshot.Take(t.Context(), cfg, snapshot.Source{
				Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() },
			})
			if err != nil || len(snap.Denied) != 1 {
				t.Errorf("%v; %+v", err, snap)
			}
		})
	}
}
