package amqptest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// spy is a testing.TB that records failures instead of failing the test.
type spy struct {
	testing.TB

	texts []string
}

type fatal struct{}

func (s *spy) Errorf(format string, args ...any) {
	s.texts = append(s.texts, fmt.Sprintf(format, args...))
}
func (s *spy) Fatalf(format string, args ...any) { s.Errorf(format, args...); panic(fatal{}) }

// failure runs do, and returns its failure messages.
func failure(t *testing.T, do func(t testing.TB)) string {
	t.Helper()
	s := &spy{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != (fatal{}) {
				panic(r)
			}
		}()
		do(s)
	}()
	return strings.Join(s.texts, "\n")
}

// opened returns a client that is connected to srv. The client is closed when the test ends.
func opened(t *testing.T, srv *amqptest.Server, cfg amqpx.Config) *amqpx.Client {
	t.Helper()
	cfg.URL, cfg.Dial = srv.URL(), srv.Dial
	c, err := amqpx.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func strategy[S amqpx.Strategy](t *testing.T) func(S, error) amqpx.Strategy {
	t.Helper()
	return func(s S, err error) amqpx.Strategy {
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// With each strategy, Expect finds a delayed message by the queue in which it will arrive, until it is consumed.
func TestExpect(t *testing.T) {
	for name, s := range map[string]amqpx.Strategy{
		"bucket": strategy[*dlx.Bucket](t)(dlx.NewBucket(dlx.BucketConfig{})), "prefix": strategy[*dlx.Bucket](t)(dlx.NewBucket(dlx.BucketConfig{Prefix: "later"})),
		"classic": strategy[*dlx.Bucket](t)(dlx.NewBucket(dlx.BucketConfig{QueueType: topology.Classic})),
		"ttl":     strategy[*dlx.TTL](t)(dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{90 * time.Second}})),
		"native":  strategy[*dlx.Native](t)(dlx.NewNative(dlx.NativeConfig{})), "plugin": strategy[*plugin.Strategy](t)(plugin.New(plugin.Config{})),
		"celery": strategy[*dlx.Levels](t)(dlx.NewLevels(dlx.LevelsConfig{Layout: "celery", QueueType: topology.Classic})),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				version := map[string]string{"native": "4.4.0", "plugin": "4.0.5"}[name]
				srv := amqptest.Start(t, amqptest.Options{Version: version, Plugin: name == "plugin"})
				c := opened(t, srv, amqpx.Config{Strategy: s})
				if name == "celery" {
					ch := plainChannel(t, srv)
					for _, q := range []string{"q", "other"} {
						if _, err := ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "classic"}); err != nil {
							t.Fatalf("declaring or binding the queue %s: got %v, want no error", q, err)
						}
					}
				}
				srv.ExpectNone(t, amqptest.Want{Queue: "q"})
				m := amqpx.Message{ID: "a", Queue: "q", Type: "paid", Delay: 90 * time.Second, Body: []byte(`{"order":42}`)}
				if err := c.Send(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				due := time.Now().Add(90 * time.Second)
				got := srv.Expect(t, amqptest.Want{Queue: "q", ID: "a", Type: "paid", Body: `{ "order": 42 }`, In: 90 * time.Second, Within: time.Millisecond})
				if got.In == "q" || !got.Due.Equal(due) || string(got.Body) != `{"order":42}` {
					t.Errorf(`Expect: got a message in the queue %q with the due time %v and the body %q, want a delay queue, %v and {"order":42}`, got.In, got.Due, got.Body, due)
				}
				srv.ExpectNone(t, amqptest.Want{Queue: "other"})
				srv.ExpectNone(t, amqptest.Want{Queue: "q", Due: due.Add(2 * time.Second)})
				srv.RunUntilIdle(t, time.Hour)
				if got := srv.Expect(t, amqptest.Want{Queue: "q", Due: due}); got.In != "q" {
					t.Errorf(`when due, the message is in the queue %q, want "q"`, got.In)
				}
				if late := time.Since(due); late < 0 || late > 2*time.Second {
					t.Errorf("RunUntilIdle returned %v after the due time, want 0 to 2s", late)
				}
				if err := c.Send(t.Context(), amqpx.Message{Queue: "other"}); err != nil {
					t.Fatal(err)
				}
				consumed := 0
				go func() {
					_ = c.Consume(t.Context(), "q", func(context.Context, *amqpx.Delivery) error { consumed++; return nil })
				}()
				srv.RunUntilIdle(t, time.Hour) // does not wait for the message in the queue other, which has no consumer
				if srv.ExpectNone(t, amqptest.Want{Queue: "q"}); consumed != 1 {
					t.Errorf("after RunUntilIdle: %d messages were consumed, want 1", consumed)
				}
			})
		})
	}
}

// Expect finds a message to an exchange by each queue that will receive it.
func TestExpectThroughExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.Start(t, amqptest.Options{})
		c := opened(t, srv, amqpx.Config{})
		ch := plainChannel(t, srv)
		if err := ch.ExchangeDeclare("shop", "fanout", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"mail", "audit"} {
			if _, err := ch.QueueDeclare(q, true, false, false, false, nil); err != nil {
				t.Fatalf("declaring or binding the queue %s: got %v, want no error", q, err)
			}
			if err := ch.QueueBind(q, "", "shop", false, nil); err != nil {
				t.Fatalf("declaring or binding the queue %s: got %v, want no error", q, err)
			}
		}
		if err := c.Send(t.Context(), amqpx.Message{ID: "a", Exchange: "shop", RoutingKey: "paid", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"mail", "audit"} {
			srv.Expect(t, amqptest.Want{Queue: q, ID: "a", In: time.Hour})
		}
		srv.ExpectNone(t, amqptest.Want{Queue: "paid"})
	})
}

func plainChannel(t *testing.T, srv *amqptest.Server) *amqp.Channel {
	t.Helper()
	conn, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// A failure lists the waiting messages and how they differ from the expected one.
func TestExpectFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.Start(t, amqptest.Options{})
		c := opened(t, srv, amqpx.Config{})
		if got := failure(t, func(t testing.TB) { t.Helper(); srv.Expect(t, amqptest.Want{Queue: "q"}) }); got != `found no message for queue "q"; waiting messages: none` {
			t.Errorf(`Expect with an empty queue: got the failure %q, want "found no message for queue \"q\"; waiting messages: none"`, got)
		}
		for i, delay := range []time.Duration{time.Minute, 15 * time.Minute} {
			if err := c.Send(t.Context(), amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: delay, Body: []byte("x")}); err != nil {
				t.Fatalf("Send with a delay of %v: got %v, want no error", delay, err)
			}
		}
		for _, x := range []struct {
			want amqptest.Want
			text []string
		}{
			{amqptest.Want{Queue: "q", Body: "x"}, []string{`expected one message, found 2 for queue "q", body "x"`, `id "0"`, `id "1"`}},
			{amqptest.Want{Queue: "q", ID: "0", In: 2 * time.Minute}, []string{
				`found no message for queue "q", id "0", due in 2m (`,
				`id "0", type "", body "x", due in 1m (2000-01-01T00:01:00.000Z) (different due)`, `(different id)`,
			}},
			{amqptest.Want{Queue: "q", ID: "1", Type: "t"}, []string{"(different type)"}},
			{amqptest.Want{Queue: "q", ID: "1", Body: "y"}, []string{"(different body)"}},
			{amqptest.Want{Queue: "elsewhere"}, []string{`queue "q", id "0"`}},
		} {
			got := failure(t, func(t testing.TB) { t.Helper(); srv.Expect(t, x.want) })
			for _, text := range x.text {
				if !strings.Contains(got, text) {
					t.Errorf("Expect: got the failure %q, want one with %q", got, text)
				}
			}
		}
		got := failure(t, func(t testing.TB) { t.Helper(); srv.ExpectNone(t, amqptest.Want{Queue: "q", ID: "1"}) })
		if !strings.Contains(got, `expected no message for queue "q", id "1"; found:`) {
			t.Errorf(`ExpectNone: got the failure %q, want one with "expected no message for queue \"q\", id \"1\"; found:"`, got)
		}
		if strings.Contains(got, `id "0"`) {
			t.Errorf(`ExpectNone: got the failure %q, want it without the message with the id "0"`, got)
		}
		for text, want := range map[string]amqptest.Want{
			"Want.Queue is not set":     {ID: "1"},
			"both Want.Due and Want.In": {Queue: "nobody's", Due: time.Now(), In: time.Minute},
		} {
			for _, expect := range []func(testing.TB){
				func(t testing.TB) { t.Helper(); srv.Expect(t, want) },
				func(t testing.TB) { t.Helper(); srv.ExpectNone(t, want) },
			} {
				if got := failure(t, expect); !strings.HasPrefix(got, text) {
					t.Errorf("Expect or ExpectNone with %s: got the failure %q, want it to start with %q", want, got, text)
				}
			}
		}
		if got := failure(t, func(t testing.TB) { t.Helper(); srv.RunUntilIdle(t, 10*time.Minute) }); got != `not idle after 10m: message "1" is on its way to q` {
			t.Errorf(`RunUntilIdle with a message due later: got the failure %q, want "not idle after 10m: message \"1\" is on its way to q"`, got)
		}
	})
}

// If an expected event does not happen, RunUntilIdle waits until its limit and then reports the event. It polls rarely
// enough that a week in a bubble takes only seconds.
func TestRunUntilIdleOfAnEventThatNeverHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.Start(t, amqptest.Options{})
		due, asked := time.Now().Add(time.Hour), 0
		got := failure(t, func(t testing.TB) {
			t.Helper()
			srv.RunUntilIdle(t, 7*24*time.Hour, func() time.Time { asked++; return due })
		})
		if want := "not idle after 7d: something outside the server is due since 6d23h (2000-01-01T01:00:00.000Z)"; got != want || asked > 11_000 {
			t.Errorf("RunUntilIdle: got the failure %q after %d polls, want %q after at most 11000", got, asked, want)
		}
	})
}

// RunUntilIdle returns only when all retries have ended and no event that its caller reports is left.
func TestRunUntilIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.Start(t, amqptest.Options{})
		c := opened(t, srv, amqpx.Config{})
		runs := 0
		go func() {
			_ = c.Consume(t.Context(), "q", func(context.Context, *amqpx.Delivery) error {
				runs++
				<-time.After(3 * time.Second)
				return errors.New("no")
			}, amqpx.WithRetry(topology.Retry{MaxAttempts: 4, Backoff: time.Hour}))
		}()
		if err := c.Send(t.Context(), amqpx.Message{ID: "a", Queue: "q", Delay: 24 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		until := began.Add(60 * 24 * time.Hour)
		srv.RunUntilIdle(t, 90*24*time.Hour, func() time.Time {
			if time.Now().Before(until) {
				return until
			}
			return time.Time{}
		})
		srv.Expect(t, amqptest.Want{Queue: "q.dead", ID: "a"})
		if took := time.Since(began); runs != 4 || took < 60*24*time.Hour || took > 60*24*time.Hour+time.Minute {
			t.Errorf("RunUntilIdle: got %d runs of the handler and a return after %v, want 4 runs and %v to %v", runs, took, 60*24*time.Hour, 60*24*time.Hour+time.Minute)
		}
	})
	// RunUntilIdle also works in real time, outside of a bubble.
	srv := amqptest.Start(t, amqptest.Options{})
	c := opened(t, srv, amqpx.Config{})
	if err := c.Send(t.Context(), amqpx.Message{ID: "a", Queue: "q", Delay: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	srv.RunUntilIdle(t, time.Minute)
	if got := srv.Expect(t, amqptest.Want{Queue: "q"}); got.In != "q" || time.Now().Before(got.Due) {
		t.Errorf(`Expect: got the message in the queue %q, %v before its due time, want it in "q" and due`, got.In, time.Until(got.Due))
	}
}
