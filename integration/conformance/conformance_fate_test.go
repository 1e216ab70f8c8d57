package conformance_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite" // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If a destination is deleted while messages wait for it, they are parked, and their routing keys still contain the
// destination. Other destinations are not affected, and the deleted one receives messages again once it exists again.
func caseDestinationDeleted(t *testing.T, c *cell) {
	const n = 20
	var gone, stays, beside string
	inTime := false
	// On a slow machine, a longer delay leaves enough time to delete the queue before the messages arrive.
	for i, delay := range []time.Duration{3 * time.Second, 6 * time.Second, 12 * time.Second, 45 * time.Second} {
		gone, stays = c.queue("gone"+strconv.Itoa(i)), c.queue("stays"+strconv.Itoa(i))
		beside = "a." + gone // the binding of either destination must not match the other's messages
		c.destination(beside)
		var msgs []amqpx.Message
		for i := range n {
			for _, q := range []string{gone, stays, beside} {
				msgs = append(msgs, amqpx.Message{
					ID: strconv.Itoa(i) + " " + q, Queue: q, Delay: delay,
					Body: []byte("for " + q), Headers: amqp.Table{"user": int64(i)},
				})
			}
		}
		began := time.Now()
		if err := c.client.SendBatch(t.Context(), msgs); err != nil {
			t.Fatalf("delay %v: %v", delay, err)
		}
		if _, err := c.channel(t).QueueDelete(gone, false, false, false); err != nil {
			t.Fatalf("delay %v: %v", delay, err)
		}
		if inTime = time.Since(began) < delay; inTime {
			break
		}
	}
	if !inTime {
		t.Fatal("sending a batch of 60 messages and deleting a queue took longer than 45 s, want less")
	}
	var parked []arrival
	in := c.plain(t, topology.ParkedQueue(c.prefix))
	for len(parked) < n {
		a := take(t, in, 1, "parked messages")[0]
		if !strings.HasSuffix(a.MessageId, gone) && strings.Contains(a.MessageId, "-gone") {
			continue // a message from an earlier attempt that was too slow
		}
		parked = append(parked, a)
	}
	for _, q := range []string{stays, beside} {
		in := c.plain(t, q)
		for _, a := range take(t, in, n, q) {
			notEarly(t, a)
			if !strings.HasSuffix(a.MessageId, " "+q) {
				t.Errorf("queue %s received %v, want MessageId ending with %q", q, a, " "+q)
			}
		}
		c.nothing(t, q, in)
	}
	for _, a := range parked {
		notEarly(t, a)
		if !strings.HasSuffix(a.MessageId, " "+gone) || string(a.Body) != "for "+gone {
			t.Errorf("parked: got %v, want MessageId ending with %q and Body = %v", a, " "+gone, "for "+gone)
		}
		if !strings.HasSuffix(a.RoutingKey, "."+gone) {
			t.Errorf("parked: got %[2]v, want a routing key that ends with its destination %[1]s", gone, a)
		}
	}

	// A consumer of the destination declares it again. Parked messages can then be sent again
	// unchanged.
	seen := c.consume(t, gone, acknowledge)
	c.awaitConsumer(t, gone)
	for _, a := range parked {
		c.send(t, amqpx.Message{ID: a.MessageId, Queue: gone, Delay: time.Second, Body: a.Body, Headers: a.Headers})
	}
	c.send(t, amqpx.Message{ID: "new", Queue: gone, Delay: 1500 * time.Millisecond})
	came := map[string]bool{}
	for _, h := range take(t, seen, len(parked)+1, "the messages that were parked, and a new message") {
		if came[h.ID] {
			t.Errorf("message %s was handled twice", h.ID)
		}
		came[h.ID] = true
	}
	if !came["new"] {
		t.Errorf(`got the messages %v, want "new" among them`, came)
	}
}

// awaitConsumer waits until a queue has a consumer. A client binds the queue before that.
func (c *cell) awaitConsumer(t *testing.T, queue string) {
	t.Helper()
	deadline := time.NewTimer(suite.Patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ch, err := c.conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		_ = ch.Close()
		if err == nil && q.Consumers > 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("queue %s got no consumer within %v: %v", queue, suite.Patience, err)
		}
	}
}

// A received message is sent several times with all its headers through the same delay queue, and always arrives.
// Before
// 4.0.1, a broker drops a message that returns to a queue with the x-death header that it received there.
func caseSentAgain(t *testing.T, c *cell) {
	for _, dest := range []struct {
		name  string
		delay time.Duration
	}{{"again", time.Second}, {"again-hops", 1500 * time.Millisecond}} {
		q := c.queue(dest.name)
		headers := amqp.Table{"user": "kept"}
		var in <-chan arrival
		for round := range 4 {
			c.send(t, amqpx.Message{ID: strconv.Itoa(round), Queue: q, Delay: dest.delay, Headers: headers})
			if in == nil {
				in = c.plain(t, q)
			}
			a := take(t, in, 1, fmt.Sprintf("round %d", round))[0]
			notEarly(t, a)
			if a.MessageId != strconv.Itoa(round) || a.Headers["user"] != "kept" {
				t.Errorf(`round %d: got %v, want MessageId = %v and Headers["user"] = "kept"`, round, a, strconv.Itoa(round))
			}
			r, err := c.client.Strategy().Route(topology.Destination{Queue: q}, dest.delay, 0)
			if err != nil {
				t.Fatal(err)
			}
			if n := hops(a); n > r.Hops {
				t.Errorf("round %d: x-death counts %d hops, want at most the %d of this round: %v", round, n, r.Hops, a.Headers["x-death"])
			}
			headers = a.Headers
		}
		c.nothing(t, q, in)
	}
}

// Headers that would make a broker route a message differently have no effect.
func caseRoutingHeaders(t *testing.T, c *cell) {
	q, copied := c.queue("routed"), c.declare(t, c.queue("copied"))
	for i, d := range []time.Duration{0, time.Second} {
		c.send(t, amqpx.Message{ID: strconv.Itoa(i), Queue: q, Delay: d, Headers: amqp.Table{
			"CC": []any{copied}, "BCC": []any{copied}, "x-delay": int64(3_600_000), "x-first-death-queue": copied,
			topology.HeaderInstant: time.Now().Add(time.Hour).UnixMilli(),
			"rabbitdelay-due":      int64(0), "rabbitdelay-attempt": int64(99), "rabbitdelay-reason": "forged", "user": "kept",
		}})
	}
	for _, a := range take(t, c.plain(t, q), 2, "deliveries") {
		notEarly(t, a)
		if got := userHeadersOf(a.Headers); !reflect.DeepEqual(got, amqp.Table{"user": "kept"}) {
			t.Errorf("headers of %s: got %v, want only user: kept", a.MessageId, got)
		}
		if a.Headers[amqpx.HeaderAttempt] != nil || a.Headers[amqpx.HeaderReason] != nil {
			t.Errorf("message with forged headers: got %v, want Headers[amqpx.HeaderAttempt] = nil and Headers[amqpx.HeaderReason] = nil", a)
		}
	}
	c.nothing(t, copied, c.plain(t, copied))
}

// attemptLog records when each attempt failed.
type attemptLog struct {
	mu     sync.Mutex
	failed map[int]time.Time // by attempt
}

func (l *attemptLog) fail(attempt int, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = map[int]time.Time{}
	}
	l.failed[attempt] = time.Now()
	return err
}

// notBefore checks that an attempt is due no sooner than backoff after the previous attempt failed.
func (l *attemptLog) notBefore(t *testing.T, h handled, backoff time.Duration) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if due, first := h.DueAt.UnixMilli(), l.failed[h.Attempt-1].UnixMilli()+backoff.Milliseconds(); due < first {
		t.Errorf("attempt %d is due %d ms before its back-off of %v is over", h.Attempt, first-due, backoff)
	}
}

// example returns a message in which every field is set.
func example(id, queue string) amqpx.Message {
	return amqpx.Message{
		ID: id, Queue: queue, Delay: time.Second, Body: []byte("body of " + id), ContentType: "text/plain", CorrelationID: "corr",
		Type: "type", AppID: "app", ReplyTo: "reply", Priority: 3, Version: 12, Headers: amqp.Table{"user": int64(5)},
	}
}

// isExample checks that a message is unchanged from the one that example returned.
func isExample(t *testing.T, a arrival, m amqpx.Message) {
	t.Helper()
	got := amqpx.Message{
		ID: a.MessageId, Queue: m.Queue, Delay: m.Delay, Body: a.Body, ContentType: a.ContentType, CorrelationID: a.CorrelationId,
		Type: a.Type, AppID: a.AppId, ReplyTo: a.ReplyTo, Priority: a.Priority, Headers: userHeadersOf(a.Headers),
	}
	got.Version, _ = a.Headers[amqpx.HeaderVersion].(int64)
	if !reflect.DeepEqual(got, m) {
		t.Errorf("the message differs from the one that was sent:\n got %+v\nwant %+v", got, m)
	}
}

func caseRetry(t *testing.T, c *cell) {
	q := c.queue("retry")
	var log attemptLog
	seen := c.consume(t, q, func(_ context.Context, d *amqpx.Delivery) error {
		if d.Attempt < 4 {
			return log.fail(d.Attempt, fmt.Errorf("failure %d", d.Attempt))
		}
		return nil
	}, amqpx.WithRetry(topology.Retry{MaxAttempts: 10, Backoff: 300 * time.Millisecond, Multiplier: 3, MaxBackoff: time.Second, Jitter: -1}))
	m := example("retried", q)
	c.send(t, m)
	backoff := []time.Duration{2: 300 * time.Millisecond, 3: 900 * time.Millisecond, 4: time.Second}
	for i, h := range take(t, seen, 4, "attempts") {
		attempt := i + 1
		header := []any{nil, nil, int64(2), int64(3), int64(4)}[attempt]
		if h.Attempt != attempt || h.MaxAttempts != 10 || h.Headers[amqpx.HeaderAttempt] != header {
			t.Errorf("got attempt %d of %d with the header %v, want %d of 10 with %v", h.Attempt, h.MaxAttempts, h.Headers[amqpx.HeaderAttempt], attempt, header)
		}
		isExample(t, arrival{Delivery: amqp.Delivery{
			MessageId: h.ID, Body: h.Body, ContentType: h.ContentType, CorrelationId: h.CorrelationID, Type: h.Type,
			AppId: h.AppID, ReplyTo: h.ReplyTo, Priority: h.Priority, Headers: h.Headers,
		}}, m)
		if attempt == 1 {
			continue
		}
		log.notBefore(t, h, backoff[attempt])
		if got, want := h.Headers[amqpx.HeaderError], fmt.Sprintf("failure %d", attempt-1); got != want {
			t.Errorf("%s is %v, want %q", amqpx.HeaderError, got, want)
		}
		attemptsAre(t, h.Headers, attempt-1, "failure")
	}
}

// attemptsAre checks that the headers record n failed attempts, each with the text.
func attemptsAre(t *testing.T, headers amqp.Table, n int, text string) {
	t.Helper()
	list, _ := headers[amqpx.HeaderAttempts].([]any)
	if len(list) != n {
		t.Errorf("%s is %v, want %d entries", amqpx.HeaderAttempts, headers[amqpx.HeaderAttempts], n)
	}
	var last time.Time
	for _, e := range list {
		entry, _ := e.(string)
		instant, what, _ := strings.Cut(entry, " ")
		at, err := time.Parse(time.RFC3339Nano, instant)
		if err != nil || at.Before(last) || !strings.Contains(what, text) {
			t.Errorf("recorded attempt: got %q after an attempt at %v, want a later time and an error containing %q", entry, last, text)
		}
		last = at
	}
}

func caseRetryIn(t *testing.T, c *cell) {
	q := c.queue("retry-in")
	var log attemptLog
	seen := c.consume(t, q, func(_ context.Context, d *amqpx.Delivery) error {
		if d.Attempt == 1 {
			return log.fail(1, amqpx.RetryIn(1500*time.Millisecond, errors.New("later")))
		}
		return nil
	}, amqpx.WithRetry(topology.Retry{MaxAttempts: 2, Backoff: time.Hour}))
	c.send(t, example("later", q))
	h := take(t, seen, 2, "attempts")[1]
	if h.Attempt != 2 || h.ID != "later" || h.Headers[amqpx.HeaderError] != "later" {
		t.Errorf(`got attempt %d of message %s with the error %v, want attempt 2 of message later with the error "later"`, h.Attempt, h.ID, h.Headers[amqpx.HeaderError])
	}
	log.notBefore(t, h, 1500*time.Millisecond)
}

// dead checks that a message is a dead letter with the given reason and last error.
func dead(t *testing.T, a arrival, m amqpx.Message, reason, lastError string, attempts int) {
	t.Helper()
	isExample(t, a, m)
	for name, want := range map[string]any{
		amqpx.HeaderReason: reason, amqpx.HeaderError: lastError, amqpx.HeaderAttempt: int64(attempts), amqpx.HeaderDestination: m.Queue,
	} {
		if got := a.Headers[name]; got != want {
			t.Errorf("dead letter %s: %s is %T %v, want %v", m.ID, name, got, got, want)
		}
	}
	notEarly(t, a)
	attemptsAre(t, a.Headers, attempts, lastError)
}

func caseAttemptsUsedUp(t *testing.T, c *cell) {
	q := c.queue("used-up")
	seen := c.consume(t, q, func(context.Context, *amqpx.Delivery) error { return errors.New("never works") },
		amqpx.WithRetry(topology.Retry{MaxAttempts: 3, Backoff: 300 * time.Millisecond, Multiplier: 1, Jitter: -1}))
	m := example("hopeless", q)
	c.send(t, m)
	take(t, seen, 3, "attempts")
	in := c.plain(t, q+".dead")
	dead(t, take(t, in, 1, "the dead letter")[0], m, inspect.ReasonAttempts, "never works", 3)
	c.nothing(t, q+".dead", in)
	for len(seen) > 0 {
		if h := <-seen; h.Attempt > 3 {
			t.Errorf("attempt %d was made, want at most 3", h.Attempt)
		}
	}
}

func caseReject(t *testing.T, c *cell) {
	q, custom := c.queue("rejected"), c.declare(t, c.queue("custom-dead"))
	reject := func(_ context.Context, d *amqpx.Delivery) error {
		if d.ID == "wrapped" {
			return fmt.Errorf("handler: %w", amqpx.Reject(errors.New("not wanted")))
		}
		return amqpx.Reject(errors.New("not wanted"))
	}
	seen := c.consume(t, q, reject, amqpx.WithDeadLetterQueue(custom))
	c.send(t, example("rejected", q), example("wrapped", q))
	take(t, seen, 2, "deliveries")
	in := c.plain(t, custom)
	for _, a := range take(t, in, 2, "dead letters") {
		text := map[string]string{"rejected": "not wanted", "wrapped": "handler: not wanted"}[a.MessageId]
		dead(t, a, example(a.MessageId, q), inspect.ReasonRejected, text, 1)
	}
	c.nothing(t, custom, in)
}

func casePanic(t *testing.T, c *cell) {
	q := c.queue("panic")
	seen := c.consume(t, q, func(_ context.Context, d *amqpx.Delivery) error {
		if d.ID == "panics" {
			panic("out of cheese")
		}
		return nil
	}, amqpx.WithRetry(topology.Retry{MaxAttempts: 2, Backoff: 300 * time.Millisecond}), amqpx.WithConcurrency(1))
	m := example("panics", q)
	c.send(t, m, example("fine", q))
	got := take(t, seen, 3, "two attempts of one message and one of the other")
	count := map[string]int{}
	for _, h := range got {
		count[h.ID]++
	}
	if count["panics"] != 2 || count["fine"] != 1 {
		t.Errorf(`attempts: got %v, want panics = 2 and fine = 1`, count)
	}
	dead(t, take(t, c.plain(t, q+".dead"), 1, "the dead letter")[0], m, inspect.ReasonAttempts, "handler panicked: out of cheese", 2)
}

// Duplicates, retries and concurrent handlers leave exactly one effect each.
func caseEffectOnce(t *testing.T, c *cell) {
	const n, copies = 25, 3
	db, err := sql.Open("sqlite",
		"file:"+filepath.Join(t.TempDir(), "effects.db")+"?_pragma=busy_timeout(180000)&_pragma=journal_mode(WAL)&_pragma=synchronous(off)&_txlock=immediate")
	suite.MustSucceed(t, err)
	t.Cleanup(func() { suite.MustSucceed(t, db.Close()) })
	suite.MustSucceed(t, idempotency.Migrate(t.Context(), db))
	_, err = db.ExecContext(t.Context(), "CREATE TABLE effects (id TEXT NOT NULL)")
	suite.MustSucceed(t, err)
	var mu sync.Mutex
	failed := map[string]bool{}
	handle := idempotency.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", d.ID); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if i, _ := strconv.Atoi(d.ID); i%5 == 0 && !failed[d.ID] {
			failed[d.ID] = true
			return errors.New("failed after the effect and before the commit")
		}
		return nil
	})
	q := c.queue("effects")
	done := make(chan string, 10*n*copies)
	c.consume(t, q, func(ctx context.Context, d *amqpx.Delivery) error {
		err := handle(ctx, d)
		if err == nil {
			done <- d.ID
		}
		return err
	}, amqpx.WithConcurrency(8), amqpx.WithRetry(topology.Retry{MaxAttempts: 20, Backoff: 300 * time.Millisecond, Multiplier: 1}))
	for i := range n {
		for range copies {
			c.send(t, amqpx.Message{ID: strconv.Itoa(i), Queue: q, Delay: time.Second, Body: []byte(strconv.Itoa(i))})
		}
	}
	acks := map[string]int{}
	for _, id := range take(t, done, n*copies, "acknowledgements") {
		acks[id]++
	}
	for i := range n {
		id := strconv.Itoa(i)
		if acks[id] != copies {
			t.Errorf("message %s was acknowledged %d times, want %d", id, acks[id], copies)
		}
		var effects int
		suite.MustSucceed(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM effects WHERE id = ?", id).Scan(&effects))
		if effects != 1 {
			t.Errorf("order %s: %d effects, want 1", id, effects)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(failed) != n/5 {
		t.Errorf("the handlers of %d messages failed once, want %d", len(failed), n/5)
	}
}
