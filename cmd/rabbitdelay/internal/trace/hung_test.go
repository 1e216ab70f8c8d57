package trace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/internal/hung"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Take searches the dead-letter queues even if the database does not answer.
func TestTakeWithAHungDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := inmemory.New(t, amqptest.Options{})
		ch := srv.Channel()
		if _, err := ch.QueueDeclare("q.dead", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.PublishWithContext(t.Context(), "", "q.dead", false, false, amqp.Publishing{MessageId: "m"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // waits until the broker has received the message
		db := hung.DB(t)
		store, err := taskview.New(db, schedule.Config{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		got, err := trace.Take(t.Context(), "m", trace.Source{
			Status: status.Source{Broker: snapshot.Source{Dial: func(ctx context.Context) (*amqp.Connection, error) {
				return inspect.Dial(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
			}}, Tasks: store},
			DB: db, Queues: []string{"q.dead"},
		})
		if err != nil || len(got.DeadLetters) != 1 || got.Complete() {
			t.Errorf("Take: got error %v and %+v, want no error and an incomplete trace with 1 dead letter", err, got)
		}
		if got.TasksKnown || got.Effects != nil || got.Records != nil || got.Scopes != nil || got.Waiting == nil || got.Unsearched == nil {
			t.Errorf("got %+v, want nil for exactly those parts that could not be read", got)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Take returned after %v, want at most 5s", took)
		}
	})
}
