package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// declaring runs f with a server in a bubble of its own.
func declaring(t *testing.T, opts amqptest.Options, f func(t *testing.T, srv *amqptest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(opts)
		defer srv.Close()
		f(t, srv)
	})
}

func opened(t *testing.T, srv *amqptest.Server, cfg amqpx.Config) *amqpx.Client {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = srv.URL()
	}
	cfg.Dial = srv.Dial
	c, err := amqpx.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func ready(srv *amqptest.Server, queue string) int {
	q, _ := srv.Queue(queue)
	return q.Ready
}

// makes declares a queue by somebody else.
func makes(t *testing.T, srv *amqptest.Server, queue string, exclusive bool) *amqp.Connection {
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
	if _, err := ch.QueueDeclare(queue, !exclusive, false, exclusive, false, nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

func connectionsOf(srv *amqptest.Server, suffix string) (names []string) {
	for _, c := range srv.Connections() {
		if strings.HasSuffix(c.Name, suffix) {
			names = append(names, c.Name)
		}
	}
	return names
}

// late is how long a binding takes in a broker with late bindings.
const late = 20 * time.Millisecond

// The broker tells the second binder of a destination that it is bound while it
// does not route by the binding yet.
func TestFirstUseWhileAnotherClientBinds(t *testing.T) {
	declaring(t, amqptest.Options{Version: "4.0.5", LateBindings: late}, func(t *testing.T, srv *amqptest.Server) {
		makes(t, srv, "q.dead", false)
		makes(t, srv, "q", false)
		var clients []*amqpx.Client
		for range 3 {
			clients = append(clients, opened(t, srv, amqpx.Config{RecheckInterval: time.Second}))
		}
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				<-time.After(time.Duration(i) * late / 4)
				for _, delay := range []time.Duration{0, 100 * time.Millisecond} {
					if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: delay}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		<-time.After(time.Minute)
		synctest.Wait()
		if got := ready(srv, "q"); got != 6 {
			t.Errorf("%d of 6 messages have arrived, %d are parked", got, ready(srv, "delay.parked"))
		}
		for _, b := range srv.Bindings("delay.deliver") {
			if len(b.Arguments) > 0 {
				t.Errorf("after a minute there is still the binding %+v", b)
			}
		}
	})
}

// Whoever gives up waiting for a first use does not let the next one overtake it.
func TestFirstUseAfterOneThatWasGivenUp(t *testing.T) {
	declaring(t, amqptest.Options{Version: "4.0.5", LateBindings: late}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), late/2)
		defer cancel()
		if err := c.Send(ctx, amqpx.Message{Queue: "q"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the first: %v", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		if got := ready(srv, "q"); got != 1 {
			t.Errorf("%d messages have arrived, %d are parked", got, ready(srv, "delay.parked"))
		}
	})
}

// Clients that start at one instant on an empty broker do not lose messages on
// their way between the delay queues.
func TestStartWhileAnotherClientDeclares(t *testing.T) {
	declaring(t, amqptest.Options{Version: "4.0.5", LateBindings: 3 * time.Second}, func(t *testing.T, srv *amqptest.Server) {
		makes(t, srv, "q", false)
		two, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}, Resolution: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, after := range []time.Duration{0, time.Second, 3500 * time.Millisecond} {
			wg.Go(func() {
				<-time.After(after)
				c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Strategy: two})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: 200 * time.Millisecond}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		<-time.After(time.Minute)
		synctest.Wait()
		if got := ready(srv, "q"); got != 3 {
			t.Errorf("%d of 3 messages have arrived, %d are parked", got, ready(srv, "delay.parked"))
		}
		if _, ok := srv.Queue(topology.LockQueue("delay")); ok {
			t.Error("the lock is still there")
		}
	})
}

// A destination over which the broker ends the connection costs no message of
// another one, and is final soon.
func TestDestinationThatEndsTheConnection(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{})
		if err := c.Send(t.Context(), amqpx.Message{Queue: "good"}); err != nil {
			t.Fatal(err)
		}
		publishing := srv.Connections()[0]
		unconfirmed := srv.Silence("good")
		sent := make(chan error, 1)
		go func() { sent <- c.Send(t.Context(), amqpx.Message{ID: "under way", Queue: "good"}) }()
		synctest.Wait()

		srv.Refuse("bad", amqp.InternalError, "no")
		began := time.Now()
		err := c.Send(t.Context(), amqpx.Message{Queue: "bad"})
		if !errors.Is(err, topology.ErrDestination) || !strings.Contains(err.Error(), "541") {
			t.Errorf("to the bad one: %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		unconfirmed()
		if err := <-sent; err != nil {
			t.Errorf("to the good one: %v", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "another"}); err != nil {
			t.Errorf("to another one: %v", err)
		}
		if now := srv.Connections()[0]; now.Name != publishing.Name || ready(srv, "good") != 2 {
			t.Errorf("the publishing connection was %+v and is %+v; good has %d messages, want 2", publishing, now, ready(srv, "good"))
		}
	})
}

// What a destination is refused for says whether it is final.
func TestDestinationsThatCannotBeUsed(t *testing.T) {
	for name, test := range map[string]struct {
		code   int
		text   string
		final  bool // else it passes
		says   string
		within time.Duration
	}{
		"exclusive to another": {amqp.ResourceLocked, "cannot obtain exclusive access to locked queue 'q' in vhost '/'", true, "exclusive to another connection", 100 * time.Millisecond},
		"not allowed":          {amqp.AccessRefused, "configure access to queue 'q' in vhost '/' refused for user 'u'", true, "docs/permissions.md", 3 * time.Second},
		"reserved":             {amqp.AccessRefused, "queue name 'q' contains reserved prefix 'amq.*'", true, "reserves", 100 * time.Millisecond},
		"over a limit":         {amqp.PreconditionFailed, "cannot declare queue 'q': queue limit in vhost '/' (10) is reached", true, "queue limit", 100 * time.Millisecond},
		"node down":            {amqp.NotFound, "home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible", false, "is down", 0},
		"metadata store":       {amqp.PreconditionFailed, "timed out", false, "timed out", 0},
	} {
		t.Run(name, func(t *testing.T) {
			declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
				c := opened(t, srv, amqpx.Config{})
				undo := srv.Refuse("q", test.code, test.text)
				began := time.Now()
				if test.final {
					err := c.Send(t.Context(), amqpx.Message{Queue: "q"})
					if _, ok := errors.AsType[*topology.DestinationError](err); !ok || !strings.Contains(err.Error(), test.says) || !errors.Is(err, amqpx.ErrNotSent) {
						t.Errorf("got %v", err)
					}
					if took := time.Since(began); took > test.within {
						t.Errorf("it took %v", took)
					}
					again := time.Now()
					if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err == nil || time.Since(again) > 0 {
						t.Errorf("right after that it took %v: %v", time.Since(again), err)
					}
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					if err := c.Send(ctx, amqpx.Message{Queue: "q"}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, topology.ErrDestination) {
						t.Errorf("got %v after %v", err, time.Since(began))
					}
				}
				undo()
				<-time.After(2 * time.Second)
				if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
					t.Errorf("when it is over: %v", err)
				}
			})
		})
	}
}

// A broker that is starting refuses its users for a moment.
func TestDestinationThatIsRefusedForAMoment(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{})
		undo := srv.Deny("", amqptest.Configure, "^q$")
		time.AfterFunc(time.Second, undo)
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
			t.Error(err)
		}
	})
}

// A destination that is being tried holds up no other one.
func TestDestinationThatDoesNotAnswer(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{})
		undo := srv.Lose("queue.declare", "q")
		sent := make(chan error, 1)
		go func() { sent <- c.Send(t.Context(), amqpx.Message{Queue: "q"}) }()
		synctest.Wait()
		began := time.Now()
		if err := c.Send(t.Context(), amqpx.Message{Queue: "other"}); err != nil || time.Since(began) > 0 {
			t.Errorf("to another one after %v: %v", time.Since(began), err)
		}
		undo()
		if err := <-sent; err != nil {
			t.Errorf("when the broker answers again, after %v: %v", time.Since(began), err)
		}
		if got := connectionsOf(srv, " declare"); len(got) > 1 {
			t.Errorf("what did not answer is still open: %v", got)
		}
	})
}

// Looking at a destination again that does not answer keeps no consumer of the
// queue from starting.
func TestConsumeWhileItsQueueIsLookedAt(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{RecheckInterval: time.Second})
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		// The client has published: its connection is not read any more.
		undo := srv.Lose("queue.declare", "q")
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		undo()
		srv.Block("memory")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		got := make(chan string, 10)
		done := make(chan error, 1)
		go func() {
			done <- c.Consume(ctx, "q", func(_ context.Context, d *amqpx.Delivery) error { got <- d.ID; return nil })
		}()
		for range 2 {
			select {
			case <-got:
			case <-time.After(20 * time.Second):
				t.Fatal("the consumer has not started within 20 s")
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Declarations have a connection of their own, as long as there are any.
func TestDeclareConnection(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{ConnectionName: "shop"})
		if got := len(srv.Connections()); got != 1 {
			t.Errorf("%d connections after Open, want 1", got)
		}
		for i := range 20 {
			if err := c.Send(t.Context(), amqpx.Message{Queue: fmt.Sprintf("q%d", i)}); err != nil {
				t.Fatal(err)
			}
		}
		if got := connectionsOf(srv, ""); !slices.Equal(got, []string{"shop publish", "shop declare"}) {
			t.Errorf("connections %q", got)
		}
		<-time.After(61 * time.Second)
		synctest.Wait()
		if got := connectionsOf(srv, ""); !slices.Equal(got, []string{"shop publish"}) {
			t.Errorf("connections after a minute %q", got)
		}
		// A limit on connections, or another password by now.
		srv.RefuseLogins()
		if err := c.Send(t.Context(), amqpx.Message{Queue: "late"}); err != nil {
			t.Errorf("without a connection of its own: %v", err)
		}
	})
}

// A client that may not declare does not send to a queue that may be unbound.
func TestDeclareNothingToUnboundQueue(t *testing.T) {
	declaring(t, amqptest.Options{Users: []amqptest.User{
		{Name: "guest", Password: "guest", Configure: ".*", Write: ".*", Read: ".*"},
		{Name: "producer", Password: "p", Write: `^(delay\.(bucket\.[0-9][^.]*|deliver|route\..*)|q)$`, Read: `^delay\.deliver$`},
		{Name: "blind", Password: "p", Write: `^(delay\.(bucket\.[0-9][^.]*|deliver|route\..*)|q)$`},
	}}, func(t *testing.T, srv *amqptest.Server) {
		opened(t, srv, amqpx.Config{})
		makes(t, srv, "q", false)
		blind := opened(t, srv, amqpx.Config{URL: srv.URLAs("blind"), Declare: amqpx.DeclareNothing})
		err := blind.Send(t.Context(), amqpx.Message{Queue: "q"})
		if _, ok := errors.AsType[*topology.DestinationError](err); !ok || !strings.Contains(err.Error(), "may not read from the exchange delay.deliver") || !strings.Contains(err.Error(), "rabbitdelay apply") {
			t.Errorf("without the right to bind: %v", err)
		}
		producer := opened(t, srv, amqpx.Config{URL: srv.URLAs("producer"), Declare: amqpx.DeclareNothing})
		if err := producer.Send(t.Context(), amqpx.Message{ID: "1", Queue: "q"}); err != nil {
			t.Errorf("with the right to bind: %v", err)
		}
		if err := producer.Send(t.Context(), amqpx.Message{Queue: "other"}); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("to a queue without any right: %v", err)
		}
		if q, parked := ready(srv, "q"), ready(srv, "delay.parked"); q != 1 || parked != 0 {
			t.Errorf("%d messages have arrived and %d are parked", q, parked)
		}
	})
}

// Routing keys with a number in them do not fill the broker.
func TestMaxRouteQueues(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		first := opened(t, srv, amqpx.Config{})
		there := amqpx.Message{Exchange: "amq.topic", RoutingKey: "there"}
		if err := first.Send(t.Context(), there); err != nil {
			t.Fatal(err)
		}
		c := opened(t, srv, amqpx.Config{MaxRouteQueues: 3})
		before := len(srv.Queues())
		var failed error
		for i := range 10 {
			err := c.Send(t.Context(), amqpx.Message{Exchange: "amq.topic", RoutingKey: fmt.Sprintf("order.%d", i)})
			if (err != nil) != (i >= 3) {
				t.Errorf("key %d: %v", i, err)
			}
			failed = err
		}
		if _, ok := errors.AsType[*topology.DestinationError](failed); !ok || !strings.Contains(failed.Error(), "MaxRouteQueues") {
			t.Errorf("got %v", failed)
		}
		if got := len(srv.Queues()) - before; got != 3 {
			t.Errorf("%d route queues were made, want 3", got)
		}
		for _, m := range []amqpx.Message{there, {Exchange: "amq.topic", RoutingKey: "order.0"}, {Queue: "q"}} {
			if err := c.Send(t.Context(), m); err != nil {
				t.Errorf("to what is there, or a queue: %v", err)
			}
		}
	})
}

// The delivery exchange is made again when a destination finds it gone.
func TestDeliveryExchangeThatWasDeleted(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{})
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.ExchangeDelete("delay.deliver", false, false); err != nil {
			t.Fatal(err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		<-time.After(4 * time.Second)
		synctest.Wait()
		if got := ready(srv, "q"); got != 1 {
			t.Errorf("%d messages have arrived", got)
		}
	})
}

// A connection that is lost while everything is declared again is no reason to
// give a message up.
func TestRedeclareOnLostConnection(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{ReconnectMin: time.Millisecond})
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second}); err != nil {
			t.Fatal(err)
		}
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDelete("delay.bucket.1s", false, false, false); err != nil {
			t.Fatal(err)
		}
		srv.CutAt("exchange.declare", 3)
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second}); err != nil {
			t.Errorf("got %v", err)
		}
	})
}

func TestHeadersThatABrokerDelaysBy(t *testing.T) {
	declaring(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{})
		h := amqp.Table{"x-opt-delivery-time": time.Now().Add(time.Hour).UnixMilli(), "x-opt-delivery-delay": int64(5000), "x-delay": int64(5), "mine": "kept"}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Headers: h}); err != nil {
			t.Fatal(err)
		}
		q, _ := srv.Queue("q")
		for name := range q.Messages[0].Headers {
			if strings.HasPrefix(name, "x-") {
				t.Errorf("the message has the header %s", name)
			}
		}
		if q.Messages[0].Headers["mine"] != "kept" {
			t.Errorf("headers %v", q.Messages[0].Headers)
		}
	})
}

// A message that would hold up all others in its delay queue is refused, and a
// retry of one goes on with a priority that does not.
func TestPriorityBefore43(t *testing.T) {
	declaring(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, srv *amqptest.Server) {
		c := opened(t, srv, amqpx.Config{})
		err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second, Priority: 9})
		me, ok := errors.AsType[*amqpx.MessageError](err)
		if !ok || me.Field != "Priority" || !strings.Contains(err.Error(), "RabbitMQ 4.0.5") || !errors.Is(err, amqpx.ErrNotSent) {
			t.Errorf("got %v", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second, Priority: 4}); err != nil {
			t.Errorf("priority 4: %v", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "retried", Priority: 9}); err != nil {
			t.Errorf("without a delay: %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		attempts := make(chan int, 10)
		go func() {
			_ = c.Consume(ctx, "retried", func(_ context.Context, d *amqpx.Delivery) error {
				attempts <- d.Attempt
				if d.Attempt == 1 {
					return errors.New("not yet")
				}
				return nil
			})
		}()
		for want := 1; want <= 2; want++ {
			if got := <-attempts; got != want {
				t.Errorf("attempt %d, want %d", got, want)
			}
		}
	})
}
