package service

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// What was chosen stands in the audit, which viewers see, too: without values of headers.
func TestChosen(t *testing.T) {
	got := chosen(amqpx.DeadLetterFilter{
		Reasons: []string{"rejected", "attempts"}, IDs: []string{"a"}, Destinations: []string{"mail"}, Tasks: true, Error: "503",
		Header: "tenant", HeaderValue: "blue", OlderThan: time.Hour, NewerThan: 48 * time.Hour,
	})
	if want := "reason rejected or attempts, id a, destination mail, a task, error 503, header tenant, older than 1h, newer than 2d"; got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}
