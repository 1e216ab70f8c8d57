package status_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/hung"
)

// A database that accepts connections and does not answer is reported as unchecked after some
// seconds, and the broker is shown.
func TestTakeBesideAHungDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		store, err := schedule.New(hung.DB(t), nil, schedule.Config{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s, err := status.Take(t.Context(), status.Source{
			Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }, SkipClock: true},
			Tasks:  store,
		})
		if err != nil || s.Broker == nil || s.Tasks != nil {
			t.Fatalf("%v: %+v", err, s)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		why := ""
		for _, u := range s.Unchecked {
			if u.Area == doctor.AreaDatabase {
				why = u.Why
			}
		}
		if !strings.Contains(why, "the database has not answered within 3s") {
			t.Errorf("unchecked: %+v", s.Unchecked)
		}
	})
}
