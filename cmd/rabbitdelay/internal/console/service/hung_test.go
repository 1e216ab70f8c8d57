package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/hung"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// If the database accepts connections but does not answer, every request is answered within seconds, and the overview
// shows the broker.
func TestHungDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		db := hung.DB(t)
		store, err := taskview.New(db, schedule.Config{})
		if err != nil {
			t.Fatal(err)
		}
		c := New(Config{Store: store, DB: db, Broker: func(context.Context) (status.Source, error) {
			return status.Source{Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }, SkipClock: true}}, nil
		}})
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		who := Identity{Name: "anna", Role: RoleOperator}
		for name, ask := range map[string]func(context.Context) error{
			"Task":  func(ctx context.Context) error { _, err := c.Task(ctx, who, "a"); return err },
			"Tasks": func(ctx context.Context) error { _, err := c.Tasks(ctx, who, schedule.Filter{Limit: 1}); return err },
			"Cancel": func(ctx context.Context) error {
				_, err := c.Change(ctx, who, "a", change.Action{Kind: change.Cancel})
				return err
			},
			"RecurringTask": func(ctx context.Context) error { _, err := c.RecurringTask(ctx, who, "a"); return err },
			"Histogram": func(ctx context.Context) error {
				_, err := c.Histogram(ctx, schedule.Filter{}, time.Time{}, time.Time{}, 1)
				return err
			},
			"Jobs":  func(ctx context.Context) error { _, err := c.Jobs(ctx, who, 1); return err },
			"Job":   func(ctx context.Context) error { _, err := c.Job(ctx, who, "a"); return err },
			"Audit": func(ctx context.Context) error { _, err := c.Audit(ctx, who, "", "", 1); return err },
			"Trace": func(ctx context.Context) error {
				got, err := c.Trace(ctx, who, "a")
				if err == nil && !got.Complete() {
					err = ErrDatabase // an incomplete trace means that the database does not answer
				}
				return err
			},
			"Overview": func(ctx context.Context) error {
				o, err := c.Overview(ctx, who)
				if _, away := o.Away(doctor.AreaDatabase); err == nil && away && o.Status.Broker != nil {
					err = ErrDatabase
				}
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			began := time.Now()
			err := ask(ctx)
			cancel()
			if took := time.Since(began); took > 5*time.Second || !DatabaseAway(err) {
				t.Errorf("%s: got error %v after %v, want one for which DatabaseAway returns true, within 5s", name, err, took)
			}
		}
	})
}
