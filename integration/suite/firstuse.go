package suite

import (
	"fmt"
	"testing"
)

// Gathers waits until a queue and the parked queue together hold the given number of messages.
func Gathers(t *testing.T, v *Vhost, queue string, want int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%s and the parked queue contain %d messages", queue, want), func() bool {
		return MessagesIn(t, v, queue)+MessagesIn(t, v, "delay.parked") >= want
	})
	if got := MessagesIn(t, v, queue); got != want {
		t.Errorf("queue %s contains %d messages, want %d", queue, got, want)
	}
}

// MessagesIn returns the number of ready messages in a queue.
func MessagesIn(t *testing.T, v *Vhost, queue string) int {
	t.Helper()
	ch, err := v.Conn.Channel() // closed below: a connection has only 2047 channels
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Close(); err != nil {
		t.Fatal(err)
	}
	return q.Messages
}
