package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/service"
)

func TestUnpaidOrderExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shop := startShop(t)
		shop.wants(t, "POST /orders/42", "order 42: unpaid\n")
		shop.wants(t, "POST /orders/43", "order 43: unpaid\n")

		time.Sleep(timeToPay - time.Second)
		shop.wants(t, "POST /orders/43/payment", "order 43: paid\n")
		shop.wants(t, "GET /orders/42", "order 42: unpaid\n")

		time.Sleep(2 * time.Second)
		synctest.Wait()
		shop.wants(t, "GET /orders/42", "order 42: cancelled\n")
		shop.wants(t, "GET /orders/43", "order 43: paid\n")
	})
}

// A testShop is the shop without its address.
type testShop struct{ http.Handler }

// startShop opens and runs the shop, on RabbitMQ and SQLite in memory, until the test ends.
func startShop(t *testing.T) testShop {
	t.Helper()
	broker := amqptest.Start(t, amqptest.Options{})
	t.Setenv("RABBITDELAY_BROKER_URL", broker.URL()) // these replace what shop.yaml says
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite::memory:")
	s, err := open(t.Context(), service.Options{
		Client: func(c *amqpx.Config) { c.Dial = broker.Dial },
	})
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx, expirer(s)) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return testShop{routes(s)}
}

// wants sends a request, such as "GET /orders/42", and compares the answer.
func (s testShop) wants(t *testing.T, request, answer string) {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
	if got := w.Body.String(); got != answer {
		t.Errorf("%s: got %q, want %q", request, got, answer)
	}
}
