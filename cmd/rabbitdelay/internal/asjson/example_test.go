package asjson_test

import (
	"encoding/json"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
)

// A program reads the output of "rabbitdelay tasks list --json" or a response of the HTTP API.
func ExampleTask() {
	const line = `{"id":"order-42-expire","queue":"orders.expire","status":"pending","due":"2026-12-24T08:00:00.000Z","version":1,` +
		`"attempts":0,"sends":1,"created":"2026-12-23T08:00:00.000Z","updated":"2026-12-23T08:00:00.000Z","expires_after":"2h"}`
	var t asjson.Task
	if err := json.Unmarshal([]byte(line), &t); err != nil {
		panic(err)
	}
	fmt.Println(t.ID, t.Status, t.Due, t.ExpiresAfter)
	// Output: order-42-expire pending 2026-12-24T08:00:00.000Z 2h
}
