package amqpx_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// A broker that is just starting refuses everybody: Open waits for it, and
// believes a refusal that lasts.
func TestOpenWaitsForABrokerThatIsStarting(t *testing.T) {
	for _, c := range []struct {
		refused time.Duration
		opens   bool
	}{{0, true}, {time.Second, true}, {time.Minute, false}} {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{})
			defer srv.Close()
			if c.refused > 0 {
				time.AfterFunc(c.refused, srv.RefuseLogins())
			}
			start := time.Now()
			client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
			if (err == nil) != c.opens {
				t.Errorf("refused for %v: %v", c.refused, err)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("refused for %v: Open took %v", c.refused, took)
			}
			if err != nil && errors.Is(err, t.Context().Err()) {
				t.Errorf("not the broker's own refusal: %v", err)
			}
			if client != nil {
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
