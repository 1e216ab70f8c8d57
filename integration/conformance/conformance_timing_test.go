package conformance_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// conformanceCases lists all cases. The first case runs alone in its cell, because its lateness
// is shown in the table.
var conformanceCases = []conformanceCase{
	{name: "on time", run: caseOnTime},
	{name: "plain consumer", run: casePlainConsumer},
	{name: "deliver at", needs: anyDelay, run: caseDeliverAt},
	{name: "no delay", run: caseNoDelay},
	{name: "order of sends", run: caseOrderOfSends},
	{name: "order of a batch", run: caseOrderOfBatch},
	{name: "order over hops", needs: twoHops, run: caseOrderOverHops},
	{name: "long before short", run: caseLongBeforeShort},
	{name: "tolerance", needs: savesHops, run: caseTolerance},
	{name: "impossible delays", run: caseImpossibleDelays},
	{name: "many senders", run: caseManySenders},

	{name: "properties", run: caseProperties},
	{name: "exchange destinations", run: caseExchangeDestinations},
	{name: "similar names", run: caseSimilarNames},
	{name: "names too long", run: caseNamesTooLong},
	{name: "strategies side by side", run: caseSideBySide},
	{name: "destination deleted", needs: parks, run: caseDestinationDeleted},
	{name: "sent again with x-death", run: caseSentAgain},
	{name: "routing headers", run: caseRoutingHeaders},

	{name: "retry with back-off", run: caseRetry},
	{name: "retry in", run: caseRetryIn},
	{name: "attempts used up", run: caseAttemptsUsedUp},
	{name: "reject", run: caseReject},
	{name: "panic", run: casePanic},
	{name: "effect once", run: caseEffectOnce},
}

// delays returns n delays from 1 s to 3 s that the cell's strategy accepts. If it accepts any delay, they are random
// with a precision of nanoseconds, and the same in each run.
func (c *cell) delays(n int) []time.Duration {
	rnd := rand.New(rand.NewPCG(27, uint64(n)))
	all := make([]time.Duration, n)
	for i := range all {
		if c.can&anyDelay == 0 {
			all[i] = declaredDelays[1+i%4]
			continue
		}
		all[i] = time.Second + time.Duration(rnd.Int64N(int64(2*time.Second)))
	}
	return all
}

// dueMilli returns the due time of a delay that starts at from, as it is encoded on the wire.
func dueMilli(from time.Time, d time.Duration) int64 {
	if d == 0 {
		return from.UnixMilli()
	}
	return ceilMilli(time.Duration(from.Add(d).UnixNano()))
}

// ceilMilli returns a duration in milliseconds, rounded up as on the wire.
func ceilMilli(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// Every message arrives once, has the requested due time and is not handled before it. Its lateness counts from the
// requested time and not from the header.
func caseOnTime(t *testing.T, c *cell) {
	q := c.queue("on-time")
	seen := c.consume(t, q, acknowledge)
	type window struct {
		first, last int64
		asked       time.Time
	}
	due := map[string]window{}
	delays := c.delays(150)
	for i, d := range delays {
		id := strconv.Itoa(i)
		before := time.Now()
		c.send(t, amqpx.Message{ID: id, Queue: q, Delay: d})
		due[id] = window{dueMilli(before, d), dueMilli(time.Now(), d), before.Add(d)}
	}
	for _, h := range take(t, seen, len(delays), "deliveries") {
		w, ok := due[h.ID]
		if !ok {
			t.Errorf("got message %q, want only messages that were sent, each once", h.ID)
			continue
		}
		delete(due, h.ID)
		if ms := h.DueAt.UnixMilli(); ms < w.first || ms > w.last {
			t.Errorf("message %s is due at %d ms, want %d to %d ms", h.ID, ms, w.first, w.last)
		}
		if h.Attempt != 1 || h.Queue != q {
			t.Errorf("message %s: got attempt %d from queue %s, want 1 and %s", h.ID, h.Attempt, h.Queue, q)
		}
		c.board.late(c.place, h.at.Sub(w.asked))
	}
}

// Any AMQP program can use the documented headers, and does not receive a message before it is due.
func casePlainConsumer(t *testing.T, c *cell) {
	q := c.queue("plain")
	delays := c.delays(40)
	began := time.Now().Truncate(time.Second)
	waited := false
	took := make([]time.Duration, len(delays))
	for i, d := range delays {
		start := time.Now()
		c.send(t, amqpx.Message{ID: strconv.Itoa(i), Queue: q, Delay: d, Version: 1<<40 + int64(i)})
		took[i] = time.Since(start)
	}
	for _, a := range take(t, c.plain(t, q), len(delays), "deliveries") {
		notEarly(t, a)
		i, _ := strconv.Atoi(a.MessageId)
		for name, want := range map[string]any{
			amqpx.HeaderAttempt: nil, amqpx.HeaderVersion: 1<<40 + int64(i), amqpx.HeaderDestination: nil,
		} {
			if got := a.Headers[name]; got != want {
				t.Errorf("header %s is %T %v, want %T %v", name, got, got, want, want)
			}
		}
		for name := range a.Headers {
			if strings.HasPrefix(name, "rabbitdelay-") && name != amqpx.HeaderDue && name != amqpx.HeaderVersion {
				t.Errorf("got the header %s, want only %s and %s with this prefix", name, amqpx.HeaderDue, amqpx.HeaderVersion)
			}
		}
		if a.DeliveryMode != amqp.Persistent {
			t.Errorf("delivery mode %d, want %d (persistent)", a.DeliveryMode, amqp.Persistent)
		}
		if a.Timestamp.Before(began) || a.Timestamp.After(a.at) {
			t.Errorf("got the timestamp %v, want the time of sending", a.Timestamp)
		}
		// A message passes through exactly the number of delay queues in its route.
		waited = waited || hops(a) > 0
		if want := c.hops(t, q, delays[i], took[i]); !slices.Contains(want, hops(a)) {
			t.Errorf("delay %v, sent within %v: the message passed through %d delay queues, want one of %v: %v",
				delays[i], took[i], hops(a), want, a.Headers["x-death"])
		}
	}
	if r, _ := c.client.Strategy().Route(topology.Destination{Queue: q}, time.Second, 0); waited != (r.Hops > 0) {
		t.Errorf("some messages have an x-death header: got %t, want %t", waited, r.Hops > 0)
	}
}

// hops returns the possible numbers of hops of a message that was sent within took. The delay counts from the call of
// Send. If Send had to declare the destination first, it uses a route for the remaining delay, which can have more
// hops. For example, in the clock layout, 2 s takes one hop and 1.6 s takes two.
func (c *cell) hops(t *testing.T, queue string, delay, took time.Duration) []int {
	t.Helper()
	asked, err := c.client.Strategy().Route(topology.Destination{Queue: queue}, delay, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := []int{asked.Hops}
	const step = 10 * time.Millisecond // the finest resolution of all layouts
	for spent := time.Duration(0); spent < took+step; spent += step {
		r, err := c.client.Strategy().Route(topology.Destination{Queue: queue}, max(0, delay-min(spent, took)), 0)
		switch {
		case errors.Is(err, topology.ErrDelay): // if the ttl strategy has no route for the remaining delay, it uses the requested delay
		case err != nil:
			t.Fatal(err)
		default:
			all = append(all, r.Hops)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// hops counts how many times a message expired in a queue.
func hops(a arrival) int {
	deaths, _ := a.Headers["x-death"].([]any)
	n := 0
	for _, d := range deaths {
		if d, ok := d.(amqp.Table); ok && d["reason"] == "expired" {
			count, _ := d["count"].(int64)
			n += int(count)
		}
	}
	return n
}

func caseDeliverAt(t *testing.T, c *cell) {
	q := c.queue("deliver-at")
	seen := c.consume(t, q, acknowledge)
	at := time.Now().Add(1500 * time.Millisecond)
	past := time.Now().Add(-time.Hour)
	c.send(t,
		amqpx.Message{ID: "future", Queue: q, DeliverAt: at},
		amqpx.Message{ID: "past", Queue: q, DeliverAt: past})
	due := map[string]time.Time{"past": past, "future": at}
	for _, h := range take(t, seen, 2, "deliveries") {
		want, ok := due[h.ID]
		delete(due, h.ID)
		if !ok || h.DueAt.UnixMilli() != ceilMilli(time.Duration(want.UnixNano())) {
			t.Errorf("message %s is due at %v, want %v (sent: %t)", h.ID, h.DueAt, want, ok)
		}
	}
}

// A message without a delay passes through no delay queue.
func caseNoDelay(t *testing.T, c *cell) {
	q := c.queue("no-delay")
	for i := range 20 {
		c.send(t, amqpx.Message{ID: strconv.Itoa(i), Queue: q})
	}
	for i, a := range take(t, c.plain(t, q), 20, "deliveries") {
		notEarly(t, a)
		if a.MessageId != strconv.Itoa(i) {
			t.Errorf("message %s arrived at position %d, want %s", a.MessageId, i, strconv.Itoa(i))
		}
		if _, waited := a.Headers["x-death"]; waited {
			t.Errorf("got a message with an x-death header, want none without a delay: %v", a)
		}
		if _, waited := a.Headers["x-delay"]; waited {
			t.Errorf("got a message with an x-delay header, want none without a delay: %v", a)
		}
	}
}

// inOrder checks that messages whose ids count from 0 arrive in that order. On a slow
// machine, a send that had to wait before it could publish uses other queues for its
// remaining delay, and there is no order between different queues.
func inOrder(t *testing.T, got []arrival) {
	t.Helper()
	last := map[string]int{}
	wrong := 0
	for _, a := range got {
		notEarly(t, a)
		n, err := strconv.Atoi(a.MessageId)
		if err != nil {
			t.Fatal(err)
		}
		by := path(a)
		if before, ok := last[by]; ok && n < before {
			if wrong++; wrong <= 3 {
				t.Errorf("message %d arrived after message %d through the same queues %s, want ascending ids", n, before, by)
			}
		}
		last[by] = max(n, last[by])
	}
	if wrong > 3 {
		t.Errorf("%d of %d messages arrived out of order, want 0", wrong, len(got))
	}
	if len(last) > 1 {
		t.Logf("the messages took %d different paths", len(last))
	}
}

// path names the delay queues through which a message has passed.
func path(a arrival) string {
	deaths, _ := a.Headers["x-death"].([]any)
	var by []string
	for _, d := range deaths {
		if d, ok := d.(amqp.Table); ok && d["reason"] == "expired" {
			by = append(by, fmt.Sprint(d["queue"], " x ", d["count"]))
		}
	}
	return strings.Join(by, ", ")
}

func caseOrderOfSends(t *testing.T, c *cell) {
	q := c.queue("order-sends")
	const n = 150
	for i := range n {
		c.send(t, amqpx.Message{ID: strconv.Itoa(i), Queue: q, Delay: 1500 * time.Millisecond})
	}
	inOrder(t, take(t, c.plain(t, q), n, "deliveries"))
}

// The delay of each message in a batch counts from its own first publish. Publishing the batch takes longer than the
// resolution of the layout, and the messages still arrive in order.
func caseOrderOfBatch(t *testing.T, c *cell) {
	q := c.queue("order-batch")
	const n = 2500
	msgs := make([]amqpx.Message, n)
	for i := range msgs {
		msgs[i] = amqpx.Message{ID: strconv.Itoa(i), Queue: q, Delay: 2 * time.Second}
	}
	if err := c.client.SendBatch(t.Context(), msgs); err != nil {
		t.Fatal(err)
	}
	inOrder(t, take(t, c.plain(t, q), n, "deliveries"))
}

func caseOrderOverHops(t *testing.T, c *cell) {
	q := c.queue("order-hops")
	const n = 150
	const delay = 2700 * time.Millisecond // two hops in both layouts: 2s and 700ms, or 1 times 1.6s and 11 times 100ms
	r, err := c.client.Strategy().Route(topology.Destination{Queue: q}, delay, 0)
	if err != nil || r.Hops != 2 {
		t.Fatalf("got route %+v, error %v, want 2 hops", r, err)
	}
	for i := range n {
		c.send(t, amqpx.Message{ID: strconv.Itoa(i), Queue: q, Delay: delay})
	}
	inOrder(t, take(t, c.plain(t, q), n, "deliveries"))
}

// A message with a long delay does not block a message with a shorter delay that is sent later, even if both pass
// through the same delay queue.
func caseLongBeforeShort(t *testing.T, c *cell) {
	q := c.queue("mixed")
	sent := []time.Duration{time.Hour, 3 * time.Second, 2 * time.Second, time.Second}
	if c.can&anyDelay != 0 {
		sent = append([]time.Duration{time.Hour + time.Second + 300*time.Millisecond, 3*time.Second + 300*time.Millisecond}, sent...)
		sent = append(sent, 1300*time.Millisecond)
	}
	want := map[string]bool{}
	for _, d := range sent {
		c.send(t, amqpx.Message{ID: d.String(), Queue: q, Delay: d})
		want[d.String()] = d < time.Hour
	}
	in := c.plain(t, q)
	short := 0
	for _, w := range want {
		if w {
			short++
		}
	}
	for _, a := range take(t, in, short, "the short delays") {
		notEarly(t, a)
		if !want[a.MessageId] {
			t.Errorf("got %v, want only the messages with short delays, each once", a)
		}
		want[a.MessageId] = false
	}
	c.nothing(t, q, in)
}

// With a tolerance, the strategy chooses a delay within the tolerance that needs fewer hops.
func caseTolerance(t *testing.T, c *cell) {
	q := c.queue("tolerance")
	// In the different layouts, the delay takes two hops without the tolerance and one hop with it: 2s and 850ms, or 3s;
	// 1 times 1.6s and 13 times 100ms, or 3.2s; 2s and 1s, or 4s.
	const delay, tolerance = 2850 * time.Millisecond, 3 * time.Second // one hop even for the remaining delay of a slow send
	c.send(t, amqpx.Message{ID: "tolerant", Queue: q, Delay: delay, Tolerance: tolerance})
	r, err := c.client.Strategy().Route(topology.Destination{Queue: q}, delay, tolerance)
	if err != nil || r.Hops != 1 || r.Delay < delay || r.Delay > delay+tolerance {
		t.Fatalf("got route %+v, error %v, want one hop with a delay from %v to %v", r, err, delay, delay+tolerance)
	}
	if exact, err := c.client.Strategy().Route(topology.Destination{Queue: q}, delay, 0); err != nil || exact.Hops < 2 {
		t.Fatalf("without a tolerance: got route %+v, error %v, want at least 2 hops", exact, err)
	}
	a := take(t, c.plain(t, q), 1, "the tolerant message")[0]
	notEarly(t, a)
	if hops(a) > 1 { // 0 if the send took longer than the delay
		t.Errorf("the message passed through %d delay queues, want at most 1: %v", hops(a), a.Headers["x-death"])
	}
}

// A delay that is out of bounds is rejected with an error that contains the bound, and no message arrives.
func caseImpossibleDelays(t *testing.T, c *cell) {
	q := c.queue("impossible")
	for _, d := range []time.Duration{c.client.MaxDelay() + time.Millisecond, math.MaxInt64} {
		err := c.client.Send(t.Context(), amqpx.Message{ID: "long", Queue: q, Delay: d})
		de, ok := errors.AsType[*topology.DelayError](err)
		if !ok || de.Max != c.client.MaxDelay() || de.Delay < c.client.MaxDelay() {
			t.Errorf("delay %v: got error %v, want a *topology.DelayError with Max = %v", d, err, c.client.MaxDelay())
		}
	}
	if err := c.client.Send(t.Context(), amqpx.Message{ID: "far", Queue: q, DeliverAt: time.Now().AddDate(500, 0, 0)}); !errors.Is(err, topology.ErrDelay) {
		t.Errorf("Send of a message that is due in 500 years: got %v, want topology.ErrDelay", err)
	}
	if err := c.client.Send(t.Context(), amqpx.Message{ID: "negative", Queue: q, Delay: -time.Nanosecond}); !errors.Is(err, amqpx.ErrMessage) {
		t.Errorf("negative delay: got error %v, want amqpx.ErrMessage", err)
	}
	err := c.client.Send(t.Context(), amqpx.Message{ID: "odd", Queue: q, Delay: 1234 * time.Millisecond})
	de, refused := errors.AsType[*topology.DelayError](err)
	switch {
	case c.can&anyDelay == 0 && (!refused || len(de.Declared) != len(declaredDelays)):
		t.Errorf("undeclared delay: got error %v, want a *topology.DelayError with the %d declared delays", err, len(declaredDelays))
	case c.can&anyDelay != 0 && err != nil:
		t.Errorf("a delay of 1.234s: got error %v, want nil", err)
	}
	// One invalid message keeps a whole batch from being sent.
	err = c.client.SendBatch(t.Context(), []amqpx.Message{
		{ID: "possible", Queue: q, Delay: time.Second}, {ID: "long", Queue: q, Delay: c.client.MaxDelay() + time.Second},
	})
	if !errors.Is(err, topology.ErrDelay) || !strings.Contains(err.Error(), "message 1 ") {
		t.Errorf(`batch: got error %v, want topology.ErrDelay containing "message 1 "`, err)
	}
	// Its delay is longer than those of the earlier messages, which would therefore arrive before it.
	c.send(t, amqpx.Message{ID: "last", Queue: q, Delay: 2 * time.Second})
	in := c.plain(t, q)
	for {
		a := take(t, in, 1, "the last message")[0]
		switch {
		case a.MessageId == "last":
			return
		case a.MessageId != "odd" || refused:
			t.Errorf("received %v, want only messages whose Send succeeded", a)
		}
	}
}

// If many goroutines share a client, no message is lost or duplicated.
func caseManySenders(t *testing.T, c *cell) {
	const senders, each = 64, 15
	q := c.queue("senders")
	delays := c.delays(senders * each)
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for i := range each {
				n := s*each + i
				m := amqpx.Message{ID: fmt.Sprintf("%d/%d", s, i), Queue: q, Delay: delays[n], Body: []byte(strconv.Itoa(n))}
				if err := c.client.Send(t.Context(), m); err != nil {
					t.Errorf("sender %d, message %d: got %v, want no error", s, i, err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	in := c.plain(t, q)
	came := map[string]bool{}
	for _, a := range take(t, in, senders*each, "deliveries") {
		notEarly(t, a)
		if came[a.MessageId] {
			t.Errorf("message %s arrived twice, want once", a.MessageId)
		}
		came[a.MessageId] = true
		n, _ := strconv.Atoi(string(a.Body))
		if id := fmt.Sprintf("%d/%d", n/each, n%each); id != a.MessageId {
			t.Errorf("message %s has the body of message %s, want its own", a.MessageId, id)
		}
	}
	c.nothing(t, q, in)
}
