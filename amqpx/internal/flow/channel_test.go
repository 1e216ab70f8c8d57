package flow

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// If the caller that opens a channel gives up, another caller can open it.
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
		for range 20 { // get chooses randomly between the lock and the cancelled context
			s := newSlot()
			_, _ = s.get(ended, conn, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := s.get(ctx, conn, 1); err != nil {
				t.Fatalf("get after a cancelled one: got %v, want nil", err)
			}
			cancel()
		}
	})
}
