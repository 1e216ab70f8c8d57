package inspect_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// kept provides a Save function that keeps messages in memory, and fails when there is no space left.
type kept struct {
	list []inspect.SavedMessage
	room int
	seen func()
}

var errFull = errors.New("no space left on device")

func (k *kept) save(list []inspect.SavedMessage) error {
	if k.seen != nil {
		k.seen()
	}
	if len(k.list)+len(list) > k.room {
		return errFull
	}
	k.list = append(k.list, list...)
	return nil
}

func (k *kept) ids() (ids []string) {
	for _, m := range k.list {
		ids = append(ids, m.Message.MessageId)
	}
	return ids
}

func (k *kept) all() iter.Seq2[inspect.SavedMessage, error] {
	return func(yield func(inspect.SavedMessage, error) bool) {
		for _, m := range k.list {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// A message is removed from the queue only after it has been saved.
func TestDiscardSavesFirst(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 6)
		k := &kept{room: 6}
		k.seen = func() {
			if q, _ := m.Queue("q.dead"); q.Ready+q.Unacked != 6-len(k.list) {
				t.Errorf("%d of 6 messages are saved, and %d are in the queue, want %d", len(k.list), q.Ready+q.Unacked, 6-len(k.list))
			}
		}
		r := c.requeue(inspect.RequeueOptions{Queue: "q.dead", Discard: true, Save: k.save, InFlight: 2,
			Filter: inspect.DeadLetterFilter{Header: "n", HeaderValue: "1"}})
		if r.Discarded != 3 || !slices.Equal(k.ids(), []string{"q-01", "q-03", "q-05"}) {
			t.Errorf("Requeue with Discard and Save: got %+v and the saved IDs %v, want Discarded = 3 and [q-01 q-03 q-05]", r, k.ids())
		}
		m.Holds("q.dead", 3, 0)
	})
}

// If there is no space left, all messages that have not been saved stay in the queue.
func TestDiscardWithoutSpace(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 6)
		k := &kept{room: 3}
		r, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{
			Queue: "q.dead", Discard: true, Save: k.save, InFlight: 2, Management: limitedTo(m, "1000000000"),
		})
		if !errors.Is(err, errFull) || r.Discarded != 2 || r.Stayed != 2 || !slices.Equal(k.ids(), []string{"q-00", "q-01"}) {
			t.Errorf("Requeue with Discard while Save fails: got %v, %+v and the saved IDs %v, want errFull, Discarded = 2, Stayed = 2 and [q-00 q-01]", err, r, k.ids())
		}
		m.Holds("q.dead", 4, 0)
	})
}

// A message that waits for its consumer is not a dead letter, so it is not discarded.
func TestDiscardKeepsLiveMessages(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("q", nil)
		m.Publish("", "q", amqp.Publishing{MessageId: "alive"})
		for _, dry := range []bool{true, false} {
			r, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q", Discard: true, DryRun: dry, Management: limitedTo(m, "1000000000")})
			if err != nil || r.Discarded != 0 || r.Stayed != 1 || !strings.Contains(r.Results[0].Why, "is not a dead letter") {
				t.Errorf(`Requeue with Discard of a live message: got %v, %+v, want no error, Discarded = 0, Stayed = 1 and a first result with "is not a dead letter"`, err, r)
			}
		}
		m.Holds("q", 1, 0)
	})
}

// If Save panics, so does Requeue, and all messages return to the queue.
func TestDiscardPanics(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 6)
		defer func() {
			if recover() == nil {
				t.Error("Requeue did not panic, want the panic of Save")
			}
			m.Holds("q.dead", 6, 0)
		}()
		c.requeue(inspect.RequeueOptions{Queue: "q.dead", Discard: true, Save: func([]inspect.SavedMessage) error { panic("out of luck") }, InFlight: 3})
	})
}

// A message from a saved file is sent to the same destination, and in the same way, as a message that is requeued from
// its queue.
func TestRequeueFrom(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		sent := func(requeue func()) map[string]map[string]any {
			got := collector{}
			requeue()
			stop := c.consume("q", got.handle)
			inmemory.After(time.Minute)
			stop()
			out := map[string]map[string]any{}
			for _, h := range got.all() {
				headers := maps.Clone(h.Headers)
				for _, changing := range []string{header.Requeued, amqpx.HeaderAttempts, amqpx.HeaderDue} {
					delete(headers, changing)
				}
				out[h.ID] = map[string]any{"headers": headers, "attempt": h.Attempt, "exchange": h.Exchange, "key": h.RoutingKey, "type": h.Type}
			}
			return out
		}
		c.bury("q", 3)
		straight := sent(func() { c.requeue(inspect.RequeueOptions{Queue: "q.dead"}) })
		c.bury("q", 3)
		k := &kept{room: 3}
		c.requeue(inspect.RequeueOptions{Queue: "q.dead", Discard: true, Save: k.save})
		for _, saved := range k.list {
			saved.Message.Acknowledger = nil
		}
		fromFile := sent(func() {
			r := c.requeue(inspect.RequeueOptions{From: k.all(), InFlight: 2})
			wantCounts(t, r, "3 total, 3 examined, 3 chosen: 3 sent, 0 revived, 0 removed, 0 stayed; 0 again, 0 moved")
			if r.Line != 3 {
				t.Errorf("Requeue from a file: got Line = %d, want 3", r.Line)
			}
		})
		if len(straight) != 3 || !reflect.DeepEqual(straight, fromFile) {
			t.Errorf("Requeue from a file: got %v\nwant 3 messages, as from the queue: %v", fromFile, straight)
		}
	})
}

// If the saved file contains an error, nothing is sent. An interrupted run reports the line up to which it is complete.
func TestRequeueFromInterrupted(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 5)
		k := &kept{room: 5}
		c.requeue(inspect.RequeueOptions{Queue: "q.dead", Discard: true, Save: k.save})
		wrong := errors.New("line 6 is wrong")
		_, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{From: func(yield func(inspect.SavedMessage, error) bool) {
			for m := range k.all() {
				yield(m, nil)
			}
			yield(inspect.SavedMessage{}, wrong)
		}})
		if !errors.Is(err, wrong) {
			t.Errorf("Requeue from a source that fails: got %v, want %v", err, wrong)
		}
		m.Holds("q", 0, 0)

		for _, end := range []struct {
			when       func(inspect.RequeueReport) bool
			sent, line int
		}{
			{func(p inspect.RequeueReport) bool { return p.Examined == 2 }, 0, 0}, // q-01 is not selected, and q-00 waits until q-02 has been read
			{func(p inspect.RequeueReport) bool { return p.Sent == 2 }, 2, 3},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			r, err := inspect.Requeue(ctx, c.Client, inspect.RequeueOptions{
				From: k.all(), InFlight: 2, Filter: inspect.DeadLetterFilter{IDs: []string{"q-00", "q-02", "q-03", "q-04"}},
				Progress: func(p inspect.RequeueReport) {
					if end.when(p) {
						cancel()
					}
				},
			})
			if !errors.Is(err, context.Canceled) || r.Sent != end.sent || r.Line != end.line {
				t.Errorf("an interrupted Requeue from saved messages: got %v, %+v, want context.Canceled, Sent = %d and Line = %d", err, r, end.sent, end.line)
			}
			m.Holds("q", end.sent, 0)
		}
	})
}

func TestRequeueFromRefuses(t *testing.T) {
	none := func(func(inspect.SavedMessage, error) bool) {}
	save := func([]inspect.SavedMessage) error { return nil }
	for _, o := range []inspect.RequeueOptions{{}, {Queue: "q", From: none}, {From: none, Discard: true}, {Queue: "q", Save: save}} {
		if err := o.Validate(topology.DefaultPrefix); !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("Validate of %+v: got %v, want amqpx.ErrConfig", o, err)
		}
	}
}

// A queue without a majority still has a message count, but does not answer. If the management API reports that, Peek,
// Walk and Requeue do not wait for the queue.
func TestQueueWithoutAMajority(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 2)
		lost := managed(t, `{"type": "quorum", "state": "minority", "effective_policy_definition": {"delivery-limit": 1000000000}}`)
		conn := m.dialed(t)
		_, peeked := inspect.Peek(t.Context(), conn, "q.dead", inspect.PeekOptions{Management: lost})
		_, walked := inspect.Walk(t.Context(), conn, "q.dead", inspect.PeekOptions{Management: lost}, nil)
		_, requeued := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q.dead", DryRun: true, Management: lost})
		for what, err := range map[string]error{"peek": peeked, "walk": walked, "requeue": requeued} {
			if !errors.Is(err, live.ErrUnavailable) || !strings.Contains(err.Error(), "minority") {
				t.Errorf(`%s: got %v, want live.ErrUnavailable with "minority"`, what, err)
			}
		}
	})
}
