package amqpx_test

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// declareOwn declares a quorum queue with a user's own arguments.
func (m *memory) declareOwn(queue string, more amqp.Table) {
	m.Helper()
	args := amqp.Table{"x-queue-type": "quorum"}
	maps.Copy(args, more)
	ch := m.Channel()
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		m.Fatal(err)
	}
}

// comesBack lists ways in which a consumer's messages return to their queue.
var comesBack = map[string]func(m *memory, c *client){
	"pause": func(_ *memory, c *client) {
		c.pause(amqpx.PauseHandBack)
		after(100 * time.Millisecond)
		c.ResumeConsuming("q")
	},
	"cut": func(m *memory, _ *client) { m.CutConnections() },
	"close": func(m *memory, _ *client) {
		m.CloseConnections("maintenance")
	},
}

// A message that was only held until its due time is not lost, however many times it returns to its queue and whatever
// the queue's limit is. It is handled unchanged when it is due.
func TestHeldMessageIsNotLost(t *testing.T) {
	for name, back := range comesBack {
		// After several connection losses, a client takes seconds to reconnect. A limit of 1 leaves room for one return
		// only, so these rounds are further apart.
		for limit, rounds := range map[int64]int{0: 25, 1: 4} {
			t.Run(fmt.Sprint(name, " ", limit), func(t *testing.T) {
				inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
					var args amqp.Table
					if limit > 0 {
						args = amqp.Table{"x-delivery-limit": limit}
					}
					m.declareOwn("q", args)
					c := m.open(amqpx.Config{Lead: time.Minute})
					var got collector
					c.consume("q", got.handle)
					began := time.Now()
					for id, delay := range map[string]time.Duration{"straight": 55 * time.Second, "delayed": 65 * time.Second} {
						c.mustSend(amqpx.Message{
							ID: id, Queue: "q", Delay: delay, Version: 7, Attempt: 3, Type: "order",
							Body: []byte("body"), Headers: amqp.Table{"mine": "kept"},
						})
					}
					after(6 * time.Second)
					for range rounds {
						back(m, c)
						after(40 * time.Second / time.Duration(rounds))
					}
					after(time.Minute)
					if at := fmt.Sprint(got.since(began)); at != "map[delayed:[1m5s] straight:[55s]]" {
						t.Errorf("the messages were handled after %s, want map[delayed:[1m5s] straight:[55s]]", at)
					}
					for _, d := range got.all() {
						if d.Version != 7 {
							t.Errorf("message %s arrived with version %d, want 7", d.ID, d.Version)
						}
						if d.Attempt != 3 {
							t.Errorf("message %s arrived with attempt %d, want 3", d.ID, d.Attempt)
						}
						if d.Type != "order" {
							t.Errorf("message %s arrived with type %q, want order", d.ID, d.Type)
						}
						if string(d.Body) != "body" {
							t.Errorf("message %s arrived with body %q, want body", d.ID, d.Body)
						}
						if d.Headers["mine"] != "kept" {
							t.Errorf("message %s arrived with the headers %v, want mine: kept", d.ID, d.Headers)
						}
						if !d.DueAt.Equal(began.Add(d.at.Sub(began))) {
							t.Errorf("message %s arrived with the due time %v, want %v", d.ID, d.DueAt, began.Add(d.at.Sub(began)))
						}
					}
				})
			})
		}
	}
}

// leavesUnseen lists ways in which a message returns to its queue before its consumer has processed it: each pauses or
// stops the consumer the given time after it has started to subscribe.
var leavesUnseen = map[string]func(c *client, h amqpx.Handler, subscribed time.Duration){
	"pause": func(c *client, _ amqpx.Handler, subscribed time.Duration) {
		c.ResumeConsuming("q")
		after(subscribed)
		c.pause(amqpx.PauseHandBack)
	},
	"end": func(c *client, h amqpx.Handler, subscribed time.Duration) {
		k := c.consume("q", h)
		after(subscribed)
		k.stop()
	},
}

// A message is not lost even if each subscription ends right after it has started.
func TestMessageIsNotLostBeforeProcessing(t *testing.T) {
	for name, leave := range leavesUnseen {
		for limit, ids := range map[int64][]string{0: {"straight", "delayed", "waiting"}, 1: {"straight", "delayed"}} {
			t.Run(fmt.Sprint(name, " ", limit), func(t *testing.T) {
				inEachVersion(t, amqptest.Options{Latency: 20 * time.Millisecond}, func(t *testing.T, m *memory) {
					var args amqp.Table
					if limit > 0 {
						args = amqp.Table{"x-delivery-limit": limit}
					}
					m.declareOwn("q", args)
					c := m.open(amqpx.Config{Lead: time.Minute})
					var got collector
					if name == "pause" {
						c.consume("q", got.handle)
						after(time.Second)
						c.pause(amqpx.PauseHandBack)
					}
					began := time.Now()
					delays := map[string]time.Duration{"straight": 55 * time.Second, "delayed": 65 * time.Second}
					for _, id := range ids {
						c.mustSend(amqpx.Message{ID: id, Queue: "q", Delay: delays[id]})
					}
					after(6 * time.Second)
					for round := range 40 {
						leave(c, got.handle, time.Duration(round%13)*20*time.Millisecond)
						after(500 * time.Millisecond)
					}
					c.ResumeConsuming("q")
					if name != "pause" {
						c.consume("q", got.handle)
					}
					after(time.Minute)
					at := got.since(began)
					for _, id := range ids {
						if len(at[id]) != 1 || at[id][0] < delays[id] || at[id][0] > delays[id]+40*time.Second {
							t.Errorf("message %s was handled after %v, want once, after %v to %v", id, at[id], delays[id], delays[id]+40*time.Second)
						}
					}
				})
			})
		}
	}
}

// A message that waits until a handler is free is not lost, however many times it returns to its queue.
func TestWaitingMessageIsNotLost(t *testing.T) {
	for name, back := range comesBack {
		t.Run(name, func(t *testing.T) {
			inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
				m.declareOwn("q", nil)
				c := m.open(amqpx.Config{})
				first, finish := true, make(chan struct{})
				got := collector{answer: func(*amqpx.Delivery) error {
					if first {
						first = false
						<-finish
					}
					return nil
				}}
				c.consume("q", got.handle, amqpx.WithConcurrency(1))
				m.Publish("", "q", amqp.Publishing{MessageId: "a stranger's", Type: "order", Headers: amqp.Table{"mine": "kept"}, Timestamp: time.Unix(1e9, 0)})
				c.mustSend(amqpx.Message{ID: "x", Queue: "q", Delay: time.Second}, amqpx.Message{ID: "y", Queue: "q", Delay: 2 * time.Second})
				after(3 * time.Second)
				for range 60 {
					back(m, c)
					after(3 * time.Second)
				}
				close(finish)
				after(time.Minute)
				seen := map[string]bool{}
				for _, d := range got.all() {
					seen[d.ID] = true
					if d.ID == "a stranger's" && (d.Type != "order" || d.Headers["mine"] != "kept" || d.Timestamp.Unix() != 1e9) {
						t.Errorf("another publisher's message arrived as %+v, want its type, headers and timestamp unchanged", d.Delivery)
					}
				}
				if len(seen) != 3 {
					t.Errorf("the messages %v were handled, want three", seen)
				}
			})
		})
	}
}

// A message that is renewed, which means replaced by a copy, is not an hour late, even if the shortest delay of the
// strategy is an hour.
func TestRenewalIsNotLateByLongSteps(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		hours, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		m.declareOwn("q", nil)
		conn, err := m.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		m.Publish("", "q", amqp.Publishing{MessageId: "x"})
		for range maxReturns + 2 { // another program returns the message to the queue
			d, ok, err := ch.Get("q", false)
			if err != nil || !ok {
				t.Fatalf("basic.get: got a message: %t, error %v, want a message and no error", ok, err)
			}
			if err := d.Nack(false, true); err != nil {
				t.Fatal(err)
			}
		}
		got := collector{}
		m.open(amqpx.Config{Strategy: hours}).consume("q", got.handle)
		after(time.Minute)
		if n := len(got.all()); n != 1 {
			t.Errorf("got %d deliveries within a minute, want 1", n)
		}
	})
}

// maxReturns is the number of returns after which a message is renewed if it is due.
const maxReturns = 15

// A message that crashes its process at each delivery is eventually dead-lettered, even though it is renewed.
func TestRenewalDoesNotHideAKiller(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		m.declareOwn("q", nil)
		c := m.open(amqpx.Config{})
		runs := 0
		c.consume("q", func(context.Context, *amqpx.Delivery) error { runs++; m.CutConnections(); return nil }, amqpx.WithConcurrency(1))
		c.mustSend(amqpx.Message{ID: "killer", Queue: "q", Delay: time.Second})
		after(2 * time.Hour)
		m.Holds("q.dead", 1, 0)
		m.Holds("q", 0, 0)
		if runs < 150 || runs > 250 {
			t.Errorf("the message was handled %d times, want 150 to 250", runs)
		}
	})
}

// A held message that returns, to this process or to another, is handled when it is due.
func TestHeldMessageComesBackInTime(t *testing.T) {
	for _, opts := range []amqptest.Options{{}, {ClockAhead: 300 * time.Millisecond}, {ClockAhead: -1200 * time.Millisecond}} {
		inEachVersion(t, opts, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{Lead: 10 * time.Second})
			var got collector
			c.consume("q", got.handle)
			began := time.Now()
			c.mustSend(amqpx.Message{ID: "straight", Queue: "q", Delay: 9300 * time.Millisecond},
				amqpx.Message{ID: "delayed", Queue: "q", Delay: 12345 * time.Millisecond},
				amqpx.Message{ID: "instant", Queue: "q", DeliverAt: began.Add(12 * time.Second)})
			after(5500 * time.Millisecond)
			comesBack["pause"](m, c)
			after(1300 * time.Millisecond)
			comesBack["cut"](m, c)
			after(time.Second)
			if err := c.Close(t.Context()); err != nil {
				t.Fatalf("%+v: Close returned %v, want nil", opts, err)
			}
			other := m.open(amqpx.Config{Lead: 10 * time.Second})
			other.consume("q", got.handle)
			after(time.Minute)
			if at := fmt.Sprint(got.since(began)); at != "map[delayed:[12.345s] instant:[12s] straight:[9.3s]]" {
				t.Errorf("the messages were handled after %s, want map[delayed:[12.345s] instant:[12s] straight:[9.3s]]", at)
			}
		})
	}
}

// Without permission to ask the broker for its time, a message is late by no more than its lead.
func TestComesBackWithoutPermissions(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: 10 * time.Second})
		var got collector
		k := c.consume("q", got.handle)
		began := time.Now()
		c.mustSend(amqpx.Message{ID: "x", Queue: "q", Delay: 15 * time.Second})
		after(10 * time.Second)
		k.stop()
		undo := m.Refuse("delay.canary.*", 403, "no rights")
		defer undo()
		other := m.open(amqpx.Config{Lead: 10 * time.Second})
		other.consume("q", got.handle)
		after(time.Minute)
		if at := got.since(began)["x"]; len(at) != 1 || at[0] < 15*time.Second || at[0] > 20*time.Second {
			t.Errorf("the message was handled after %v, want once, after 15s to 20s", at)
		}
	})
}

// If a client asks a slow broker for its time and does not wait for the answer, it leaves no queue behind.
func TestClockRequestLeavesNoQueue(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Latency: 100 * time.Millisecond}, func(t *testing.T, m *memory) {
		conn, err := m.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for wait := 100 * time.Millisecond; wait < time.Second; wait += 50 * time.Millisecond {
			_, _ = live.Broker{Conn: conn}.Time(m.within(wait), "delay")
		}
		after(5 * time.Minute)
		for _, q := range m.Queues() {
			t.Errorf("queue %s exists after 5 minutes, want no queue", q)
		}
	})
}

// A backlog of overdue messages is not held, even if only the prefetch limits how many messages a consumer receives.
func TestBacklogIsNotHeld(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		m.declareSingleActive("q")
		c := m.open(amqpx.Config{Lead: 5 * time.Second})
		for i := range 300 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 6*time.Second + time.Duration(i)*20*time.Millisecond})
		}
		after(10 * time.Minute)
		var got collector
		other := m.open(amqpx.Config{Lead: 5 * time.Second})
		other.consume("q", got.handle, amqpx.WithPrefetch(64))
		after(2 * time.Second)
		if n := len(got.all()); n != 300 {
			t.Errorf("%d overdue messages were handled within 2 s, want 300", n)
		}
		if s := other.Stats().Consumers[0]; s.Prefetch != 64 {
			t.Errorf("the consumer has the prefetch %d, want 64, because it holds nothing", s.Prefetch)
		}
	})
}

// A backlog of messages whose delays are shorter than their lead is not held either, even if the broker could not be
// reached when they were sent. Messages are handled in time and never early, whichever clock is wrong.
func TestBacklogOfShortDelaysIsNotHeld(t *testing.T) {
	const hour = time.Hour
	for name, c := range map[string]struct {
		publisher, consumer, broker time.Duration // how far each clock is ahead
		away                        time.Duration // how long the broker refuses connections
	}{
		"clocks agree":                {},
		"broker ahead":                {broker: hour},
		"publisher behind":            {publisher: -hour},
		"publisher ahead":             {publisher: hour},
		"consumer behind":             {consumer: -hour},
		"consumer ahead":              {consumer: hour},
		"sent during an outage":       {away: 5 * time.Second},
		"sent late after an outage":   {away: 9 * time.Second},
		"publisher behind, sent late": {away: 5 * time.Second, publisher: -hour},
	} {
		t.Run(name, func(t *testing.T) {
			inEachVersion(t, amqptest.Options{ClockAhead: c.broker}, func(t *testing.T, m *memory) {
				m.declareSingleActive("q")
				by := func(ahead time.Duration) func() time.Time {
					return func() time.Time { return time.Now().Add(ahead) }
				}
				publisher := m.open(amqpx.Config{Lead: 10 * time.Second, Now: by(c.publisher)})
				if c.away > 0 {
					publisher.mustSend(amqpx.Message{ID: "first", Queue: "q"}) // so that the client has checked the queue
					undo := m.RefuseConnections()
					m.CutConnections()
					time.AfterFunc(c.away, undo)
				}
				began, due := time.Now(), map[string]time.Duration{}
				var batch []amqpx.Message
				for i := range 300 {
					id, delay := fmt.Sprint(i), 8*time.Second+time.Duration(i)*3*time.Millisecond
					due[id] = delay
					batch = append(batch, amqpx.Message{ID: id, Queue: "q", Delay: delay})
				}
				if err := publisher.SendBatch(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
				after(10*time.Minute - time.Since(began))
				var got collector
				m.open(amqpx.Config{Lead: 10 * time.Second, Now: by(c.consumer)}).consume("q", got.handle, amqpx.WithPrefetch(64))
				after(2 * time.Second)
				if n := len(got.since(began)); n < 300 {
					t.Errorf("%d overdue messages were handled within 2 s, want 300", n)
				}
				// The next message has a delay below its lead, and is sent while a consumer is running, by a publisher
				// whose clock may be wrong.
				began = time.Now()
				publisher.mustSend(amqpx.Message{ID: "fresh", Queue: "q", Delay: 8 * time.Second})
				after(time.Minute)
				if at := got.since(began)["fresh"]; len(at) != 1 || at[0] < 8*time.Second || at[0] > 10*time.Second {
					t.Errorf("the message with a delay of 8s was handled after %v, want once, after 8s to 10s", at)
				}
			})
		})
	}
}

// If a consumer's clock is ahead by less than 2 s, which is allowed, messages are early by less than 2 s. If it is
// ahead by more, no message is early.
func TestEarlyByAClockAhead(t *testing.T) {
	for _, ms := range []int{1900, 2100, 2500, 2900, 3500, 3600000} {
		ahead := time.Duration(ms) * time.Millisecond
		inMemory(t, func(t *testing.T, m *memory) {
			publisher := m.open(amqpx.Config{Lead: 10 * time.Second})
			c := m.open(amqpx.Config{Lead: 10 * time.Second, Now: func() time.Time { return time.Now().Add(ahead) }})
			var got collector
			c.consume("q", got.handle)
			began := time.Now()
			want := map[string]time.Duration{}
			for i := range 100 {
				delay := 12*time.Second + time.Duration(i)*73*time.Millisecond
				want[fmt.Sprint(i)] = delay
				publisher.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: delay})
			}
			after(6 * time.Second)
			comesBack["pause"](m, c)
			after(3 * time.Second)
			comesBack["cut"](m, c)
			after(time.Minute)
			for id, at := range got.since(began) {
				if early := want[id] - at[0]; len(at) != 1 || early >= 2*time.Second || ahead > 2*time.Second && early > 0 {
					t.Fatalf("with a clock %v ahead, %s was handled after %v, want once after %v, or less than 2s earlier if the clock is at most 2s ahead",
						ahead, id, at, want[id])
				}
			}
			if n := len(got.all()); n != 100 {
				t.Errorf("%d messages were handled, want 100", n)
			}
		})
	}
}

// On a broker that counts every return, a message that a pausing consumer hands back is renewed first. If the
// connection is lost soon after the consumer resumes, that is the message's first return, so a limit of 1 does not drop
// it.
func TestPauseCountsNoReturn(t *testing.T) {
	for lost := 5 * time.Millisecond; lost < 500*time.Millisecond; lost += 30 * time.Millisecond {
		inEachVersion(t, amqptest.Options{Latency: 20 * time.Millisecond}, func(t *testing.T, m *memory) {
			m.declareOwn("q", amqp.Table{"x-delivery-limit": int64(1)})
			c := m.open(amqpx.Config{Lead: time.Minute})
			var got collector
			c.consume("q", got.handle)
			for i := range 25 {
				c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 55 * time.Second})
			}
			after(10 * time.Second)
			c.pause(amqpx.PauseHandBack)
			after(2 * time.Second)
			c.ResumeConsuming("q")
			after(lost)
			m.CutConnections()
			after(2 * time.Minute)
			if n := len(got.since(time.Now())); n != 25 {
				t.Errorf("connection lost %v after the consumer resumed: %d messages were handled, want 25", lost, n)
			}
		})
	}
}

// A consumer that pauses renews no messages of a classic queue, because classic queues have no delivery limit. On a
// broker that counts every return, it renews the messages of a quorum queue.
func TestPauseRenewsNoMessagesOfAClassicQueue(t *testing.T) {
	for name, x := range map[string]struct {
		version string
		own     topology.QueueType // the type of a user's own queue
		config  topology.QueueType
		copies  int
	}{
		"3.10, classic":                    {"3.10.8", "", topology.Classic, 0},
		"4.0, classic":                     {"4.0.5", "", topology.Classic, 0},
		"4.0, quorum":                      {"4.0.5", "", topology.Quorum, 20},
		"4.0, own classic":                 {"4.0.5", topology.Classic, topology.Quorum, 0},
		"4.0, own quorum":                  {"4.0.5", topology.Quorum, topology.Quorum, 20},
		"4.0, own quorum, classic in file": {"4.0.5", topology.Quorum, topology.Classic, 20},
		"4.3, quorum":                      {"4.3.0", "", topology.Quorum, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryOf(t, amqptest.Options{Version: x.version}, func(t *testing.T, m *memory) {
				if x.own != "" {
					m.declareOwn("q", amqp.Table{"x-queue-type": string(x.own)})
				}
				c := m.open(amqpx.Config{Lead: time.Minute, QueueType: x.config})
				var got collector
				c.consume("q", got.handle)
				for i := range 20 {
					c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 55 * time.Second})
				}
				after(10 * time.Second)
				before := m.Publishes("")
				c.pause(amqpx.PauseHandBack)
				after(2 * time.Second)
				if n := m.Publishes("") - before; n != x.copies {
					t.Errorf("the pausing consumer published %d copies, want %d", n, x.copies)
				}
				c.ResumeConsuming("q")
				after(2 * time.Minute)
				if n := len(got.since(time.Now())); n != 20 {
					t.Errorf("%d messages were handled, want 20", n)
				}
			})
		})
	}
}

// If the queue is deleted while a consumer checks its delivery limit, the check does not create the queue with other
// arguments.
func TestLimitCheckCreatesNoQueue(t *testing.T) {
	for _, version := range []string{"3.10.8", "4.0.5"} {
		inMemoryOf(t, amqptest.Options{Version: version}, func(t *testing.T, m *memory) {
			m.declareOwn("q", amqp.Table{"x-delivery-limit": int64(5)})
			c := m.open(amqpx.Config{Lead: time.Minute})
			var got collector
			c.consume("q", got.handle)
			var declared atomic.Int64 // the check declares the queue twice, and the restarting consumer declares it again
			defer m.Control(func(f amqptest.Frame) (a amqptest.Action) {
				if f.FromClient && f.Method == "queue.declare" && f.Name == "q" {
					a.Delay = []time.Duration{0, 0, 2 * time.Second, 5 * time.Second}[min(declared.Add(1), 3)]
				}
				return a
			})()
			c.mustSend(amqpx.Message{Queue: "q", Delay: 90 * time.Second})
			declared.Store(0)
			after(31 * time.Second)
			if _, err := m.Channel().QueueDelete("q", false, false, false); err != nil {
				t.Fatal(err)
			}
			after(3 * time.Second)
			if _, exists := m.Queue("q"); exists || declared.Load() < 2 {
				t.Errorf("RabbitMQ %s: got %d declarations of the deleted queue, and the queue exists: %t, want at least 2 and false", version, declared.Load(), exists)
			}
		})
	}
}

// A consumer that holds messages logs a warning if the queue's delivery limit is too low for that.
func TestLowDeliveryLimitIsLogged(t *testing.T) {
	for _, x := range []struct {
		version string
		args    amqp.Table
		warns   bool
	}{
		{"3.10.8", amqp.Table{"x-delivery-limit": int64(1)}, true},
		{"4.0.5", amqp.Table{"x-delivery-limit": int64(1)}, true},
		{"4.0.5", amqp.Table{"x-delivery-limit": int64(2)}, true},
		{"4.0.5", amqp.Table{"x-delivery-limit": int64(3)}, false},
		{"4.0.5", nil, false},
		{"4.3.0", amqp.Table{"x-delivery-limit": int64(1)}, false},
	} {
		inMemoryOf(t, amqptest.Options{Version: x.version}, func(t *testing.T, m *memory) {
			m.declareOwn("q", x.args)
			c, o := m.watched(amqpx.Config{Lead: time.Minute})
			var got collector
			c.consume("q", got.handle)
			c.mustSend(amqpx.Message{Queue: "q", Delay: 30 * time.Second})
			after(time.Minute)
			if n := o.log.FilterMessageSnippet("low delivery limit").Len(); (n == 1) != x.warns {
				t.Errorf("RabbitMQ %s, arguments %v: got %d warnings, want exactly one: %t", x.version, x.args, n, x.warns)
			}
		})
	}
}
