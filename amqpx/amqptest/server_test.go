package amqptest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

func open(t *testing.T, srv *amqptest.Server) *amqpx.Client {
	t.Helper()
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A message with a delay of a year arrives when it is due, without a year of real time.
func TestADelayOfAYear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		client := open(t, srv)
		defer client.Close(t.Context())
		const delay = 365 * 24 * time.Hour
		began := time.Now()
		if err := client.Send(t.Context(), amqpx.Message{Queue: "renewals", Body: []byte("42"), Delay: delay}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := client.Consume(ctx, "renewals", func(_ context.Context, d *amqpx.Delivery) error {
			if late := time.Since(began.Add(delay)); late < 0 || late > 10*time.Millisecond {
				t.Errorf("the message was handled %v after it was due, want 0 to 10ms", late)
			}
			cancel()
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
