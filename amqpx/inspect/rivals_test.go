package inspect_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
)

// takeAll starts a consumer that receives all messages from a queue and keeps them unacknowledged.
func takeAll(t *testing.T, m *memory, queue string) {
	t.Helper()
	ch, err := m.dialed(t).Channel()
	if err != nil {
		t.Error(err)
		return
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Error(err)
		return
	}
	go func() {
		for range deliveries { // the messages stay unacknowledged
		}
	}()
}

// Messages that another consumer receives during a run are reported as missed, because they may still be in the queue.
func TestRequeueReportsMissedMessages(t *testing.T) {
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard %v", discard), func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				layDead(m, 3000, func(int) string { return "x" })
				c := m.open(amqpx.Config{})
				began := false
				k := &kept{room: 3000}
				o := inspect.RequeueOptions{Queue: "q.dead", Discard: discard, Progress: func(inspect.RequeueReport) {
					if !began {
						began = true
						takeAll(t, m, "q.dead")
						inmemory.After(time.Second)
					}
				}}
				if discard {
					o.Save = k.save
				} else {
					o.DryRun = true
				}
				r, err := inspect.Requeue(t.Context(), c.Client, o)
				if err != nil || r.Total != 3000 || r.Examined == 0 || r.Missed == 0 || r.Examined+r.Missed != r.Total {
					t.Errorf("Requeue with a rival: got %d examined and %d missed messages of %d, error %v, want at least one of each, 3000 in total and no error",
						r.Examined, r.Missed, r.Total, err)
				}
			})
		})
	}
}

// If another client consumes messages while Peek reads, Peek does not include the missing messages in More, or report
// them as left out because of their size.
func TestPeekWithARival(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.3.0"}, func(t *testing.T, m *memory) {
		m.Declare("q", amqp.Table{"x-queue-type": "quorum"})
		for range 20 {
			for i := range 100 {
				m.Publish("", "q", amqp.Publishing{MessageId: fmt.Sprint(i), Body: []byte("x")})
			}
			inmemory.After(time.Second)
			conn := m.dialed(t)
			rival, err := m.dialed(t).Channel()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for ok := true; ok; {
					_, ok, _ = rival.Get("q", true)
				}
			}()
			got, err := inspect.Peek(t.Context(), conn, "q", inspect.PeekOptions{Limit: 200})
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(got.Notes, "; "); got.More != 0 || strings.Contains(notes, "MiB") {
				t.Errorf("Peek with a rival: got %d messages, %d more and the notes %q, want 0 more and no note about MiB", len(got.Messages), got.More, notes)
			}
			inmemory.After(time.Second)
		}
	})
}
