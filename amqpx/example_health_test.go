package amqpx_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// Serves a readiness probe that reports problems and when they started.
func ExampleClient_Health() {
	client, err := amqpx.Open(context.Background(), amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	ready := func(w http.ResponseWriter, _ *http.Request) {
		if err := client.Health(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
	probe := func() int {
		answer := httptest.NewRecorder()
		ready(answer, httptest.NewRequest(http.MethodGet, "/ready", http.NoBody))
		return answer.Code
	}
	fmt.Println(probe(), client.Stats().Publish.State)

	// Before the process exits, close the client with a deadline shorter than the grace period.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	fmt.Println("closed:", client.Close(ctx))
	fmt.Println(probe(), client.Stats().Publish.State)
	// Output:
	// 200 connected
	// closed: <nil>
	// 503 closed
}
