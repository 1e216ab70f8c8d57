package flow

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// A caller that gives up while a channel is being opened does not block other callers.
func TestOpeningSlotIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 { // whether the caller gets the lock is random
			s := newSlot()
			_, _ = s.get(ended, conn, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := s.get(ctx, conn, 1); err != nil {
				t.Fatalf("the next channel: got %v, want no error", err)
			}
			cancel()
		}
	})
}
