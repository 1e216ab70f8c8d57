package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// observer is a hook of every kind that writes down what it sees.
type observer struct {
	mu       sync.Mutex
	states   []string
	outcomes []amqpx.Outcome
	ends     []amqpx.HandleEnd
}

func (o *observer) ConnectionState(e amqpx.StateEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.states = append(o.states, e.Connection+" "+string(e.State))
}

func (o *observer) HandleStart(ctx context.Context, _ *amqpx.Delivery) context.Context { return ctx }

func (o *observer) HandleEnd(_ context.Context, e amqpx.HandleEnd) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes = append(o.outcomes, e.Outcome)
	o.ends = append(o.ends, e)
}

func (o *observer) saw() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.states)
}

// after lets a bubble's time pass and everything in it come to rest.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// consuming runs a consumer until the returned function is called, which gives
// what Consume returned.
func consuming(t *testing.T, c *amqpx.Client, queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Consume(ctx, queue, h, opts...) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

func mustSend(t *testing.T, c *amqpx.Client, msgs ...amqpx.Message) {
	t.Helper()
	for _, m := range msgs {
		if err := c.Send(t.Context(), m); err != nil {
			t.Fatalf("send %s: %v", m.ID, err)
		}
	}
}

// A client whose connections are cut makes new ones, and both sending and
// consuming go on.
func TestConnectionsComeBack(t *testing.T) {
	o := &observer{}
	onMemory(t, amqptest.Options{Version: "4.0.5"}, amqpx.Config{Hooks: []amqpx.Hook{o}, ConnectionName: "orders"}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		if got := c.Broker(); got != "RabbitMQ 4.0.5" {
			t.Errorf("connected to %q", got)
		}
		var got []string
		stop := consuming(t, c, "q", func(_ context.Context, d *amqpx.Delivery) error {
			got = append(got, d.ID)
			return nil
		}, amqpx.Concurrency(1))
		for i := range 3 {
			srv.CutConnections()
			mustSend(t, c, amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: time.Second})
			after(time.Minute)
		}
		if err := stop(); err != nil || !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("%v, got %v", err, got)
		}
		after(2 * time.Minute) // the connection for declarations is closed when it is idle
		var names []string
		for _, conn := range srv.Connections() {
			names = append(names, conn.Name)
		}
		if !slices.Equal(slices.Sorted(slices.Values(names)), []string{"orders consume", "orders publish"}) {
			t.Errorf("connections %q", names)
		}
		undo := srv.RefuseConnections()
		srv.CutConnections()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Send(ctx, amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrNotSent) || c.Broker() != "" {
			t.Errorf("without a broker: %v, connected to %q", err, c.Broker())
		}
		undo()
		after(time.Minute)
		mustSend(t, c, amqpx.Message{Queue: "q"})
	})
	states := o.saw()
	for _, want := range []string{"publish connecting", "publish connected", "publish disconnected", "publish closed", "consume connected", "consume disconnected", "consume closed"} {
		if !slices.Contains(states, want) {
			t.Errorf("no event %q in %q", want, states)
		}
	}
}

// An answer that is lost with its connection leaves a message's fate unknown: it
// is sent again under its id, and arrives once or twice, never not at all.
func TestAConfirmIsLost(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		mustSend(t, c, amqpx.Message{ID: "first", Queue: "q"})
		srv.CutAt("basic.ack", 1)
		mustSend(t, c, amqpx.Message{ID: "twice", Queue: "q"})
		q, _ := srv.Queue("q")
		var ids []string
		for _, m := range q.Messages {
			ids = append(ids, m.MessageId)
		}
		if !slices.Equal(ids, []string{"first", "twice", "twice"}) {
			t.Errorf("in the queue: %q", ids)
		}
		defer srv.Lose("basic.ack", "")()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := c.Send(ctx, amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrOutcomeUnknown) {
			t.Errorf("a confirm that never comes: %v", err)
		}
	})
}

// A broker in alarm takes no publishes: sends wait for it, or say that it was
// the reason. Consumers go on.
func TestBlocked(t *testing.T) {
	o := &observer{}
	onMemory(t, amqptest.Options{}, amqpx.Config{Hooks: []amqpx.Hook{o}}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		handled := 0
		stop := consuming(t, c, "q", func(context.Context, *amqpx.Delivery) error { handled++; return nil }, amqpx.Concurrency(1))
		mustSend(t, c, amqpx.Message{Queue: "q", Delay: 10 * time.Second})
		srv.Block("low on memory")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := c.Send(ctx, amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrBlocked) || !strings.Contains(err.Error(), "low on memory") {
			t.Errorf("a blocked send: %v", err)
		}
		after(10 * time.Second)
		if handled != 1 {
			t.Errorf("%d were handled", handled)
		}
		time.AfterFunc(20*time.Second, srv.Unblock)
		mustSend(t, c, amqpx.Message{Queue: "q"})
		after(time.Second)
		if handled != 2 {
			t.Errorf("%d were handled", handled)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if states := o.saw(); !slices.Contains(states, "publish blocked") || !slices.Contains(states, "publish unblocked") {
		t.Errorf("events %q", states)
	}
}

// What was deleted under a running client is made again: a delay queue on the
// broker's return, a destination when it is looked at again.
func TestWhatIsDeletedComesBack(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		mustSend(t, c, amqpx.Message{ID: "0", Queue: "q", Delay: time.Minute})
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDelete("delay.bucket.1m", false, false, false); err != nil {
			t.Fatal(err)
		}
		mustSend(t, c, amqpx.Message{ID: "1", Queue: "q", Delay: time.Minute})
		if q, ok := srv.Queue("delay.bucket.1m"); !ok || q.Ready != 1 {
			t.Errorf("the delay queue holds %d", q.Ready)
		}
		if _, err := ch.QueueDelete("q", false, false, false); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Minute) // the destination counts as known for one
		mustSend(t, c, amqpx.Message{ID: "2", Queue: "q", Delay: time.Minute})
		after(2 * time.Minute)
		if q, ok := srv.Queue("q"); !ok || q.Ready != 1 || q.Messages[0].MessageId != "2" {
			t.Errorf("the destination holds %+v", q.Messages)
		}
		if q, _ := srv.Queue("delay.parked"); q.Ready != 1 {
			t.Errorf("%d are parked, want the one that came to no queue", q.Ready)
		}
	})
}

// A failing handler has its attempts with growing pauses, then the message is a
// dead letter with what happened; a rejected one is it at once; RetryIn sets the
// pause.
func TestRetriesAndDeadLetters(t *testing.T) {
	o := &observer{}
	onMemory(t, amqptest.Options{}, amqpx.Config{Hooks: []amqpx.Hook{o}}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		tries := map[string][]time.Time{}
		stop := consuming(t, c, "q", func(_ context.Context, d *amqpx.Delivery) error {
			tries[d.ID] = append(tries[d.ID], time.Now())
			switch {
			case d.ID == "rejected":
				return amqpx.Reject(errors.New("no good"))
			case d.ID == "later" && d.Attempt == 1:
				return amqpx.RetryIn(time.Hour, errors.New("not now"))
			case d.ID == "later":
				return nil
			case d.ID == "panics":
				panic("oh")
			}
			return errors.New("never works")
		}, amqpx.Concurrency(1), amqpx.Retry(topology.Retry{MaxAttempts: 3, Backoff: time.Minute, Multiplier: 2, Jitter: -1}), amqpx.DeadLetterQueue("graveyard"), amqpx.Prefetch(5))
		for _, id := range []string{"fails", "rejected", "later", "panics"} {
			mustSend(t, c, amqpx.Message{ID: id, Queue: "q", Body: []byte(id)})
		}
		after(3 * time.Hour)
		if err := stop(); err != nil {
			t.Error(err)
		}
		counts := map[string]int{}
		for id, at := range tries {
			counts[id] = len(at)
		}
		if want := map[string]int{"fails": 3, "rejected": 1, "later": 2, "panics": 3}; !maps.Equal(counts, want) {
			t.Errorf("attempts %v, want %v", counts, want)
		}
		for i, pause := range []time.Duration{time.Minute, 2 * time.Minute} {
			if got := tries["fails"][i+1].Sub(tries["fails"][i]); got < pause || got > pause+time.Second {
				t.Errorf("pause %d was %v, want %v", i, got, pause)
			}
		}
		if got := tries["later"][1].Sub(tries["later"][0]); got < time.Hour || got > time.Hour+time.Second {
			t.Errorf("RetryIn an hour came after %v", got)
		}
		reasons := map[string]any{}
		q, _ := srv.Queue("graveyard")
		for _, m := range q.Messages {
			reasons[m.MessageId] = m.Headers[amqpx.HeaderReason]
			if string(m.Body) != m.MessageId {
				t.Errorf("%s has the body %s", m.MessageId, m.Body)
			}
		}
		if want := map[string]any{"fails": amqpx.ReasonAttempts, "rejected": amqpx.ReasonRejected, "panics": amqpx.ReasonAttempts}; !maps.Equal(reasons, want) {
			t.Errorf("dead letters %v, want %v", reasons, want)
		}
	})
	seen := map[amqpx.Outcome]int{}
	for _, x := range o.outcomes {
		seen[x]++
	}
	if want := map[amqpx.Outcome]int{amqpx.Acked: 1, amqpx.Retried: 5, amqpx.DeadLettered: 3}; !maps.Equal(seen, want) {
		t.Errorf("outcomes %v, want %v", seen, want)
	}
}

// At the end of a consumer its handlers finish, and what it has not begun is in
// the queue; those that run past the drain time lose their context and their
// message.
func TestDrain(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		for i := range 10 {
			mustSend(t, c, amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
		}
		var finished atomic.Int64
		stop := consuming(t, c, "q", func(context.Context, *amqpx.Delivery) error {
			<-time.After(10 * time.Second)
			finished.Add(1)
			return nil
		}, amqpx.Concurrency(2))
		if err := stop(); err != nil || finished.Load() != 2 {
			t.Errorf("%v, %d finished", err, finished.Load())
		}
		synctest.Wait()
		if q, _ := srv.Queue("q"); q.Ready != 8 || q.Unacked != 0 || q.Consumers != 0 {
			t.Errorf("%d ready, %d held", q.Ready, q.Unacked)
		}
		var ends []error
		stop = consuming(t, c, "q", func(ctx context.Context, _ *amqpx.Delivery) error {
			<-ctx.Done()
			ends = append(ends, ctx.Err())
			return ctx.Err()
		}, amqpx.Concurrency(1), amqpx.DrainTimeout(time.Minute))
		began := time.Now()
		if err := stop(); err != nil || len(ends) != 1 || time.Since(began) < time.Minute {
			t.Errorf("%v after %v, handlers ended by %v", err, time.Since(began), ends)
		}
		release := make(chan struct{})
		stop = consuming(t, c, "q", func(context.Context, *amqpx.Delivery) error { <-release; return nil }, amqpx.Concurrency(1), amqpx.DrainTimeout(time.Second))
		if err := stop(); !errors.Is(err, amqpx.ErrDrainTimeout) {
			t.Errorf("a handler that does not end: %v", err)
		}
		close(release)
		after(time.Minute)
		if q, _ := srv.Queue("q"); q.Ready != 8 {
			t.Errorf("%d ready; nothing was done with them", q.Ready)
		}
	})
}

// Close ends consumers and refuses what comes after it.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- c.Consume(t.Context(), "q", func(context.Context, *amqpx.Delivery) error { return nil })
		}()
		synctest.Wait()
		srv.Block("for ever")
		waiting := make(chan error, 1)
		go func() {
			_ = c.Send(t.Context(), amqpx.Message{Queue: "q"}) // blocks the connection
			waiting <- c.Send(t.Context(), amqpx.Message{Queue: "q"})
		}()
		synctest.Wait()
		for range 2 {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := <-ended; err != nil {
			t.Errorf("the consumer ended with %v", err)
		}
		if err := <-waiting; !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a waiting send ended with %v", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a later send: %v", err)
		}
		if err := c.Consume(t.Context(), "q", func(context.Context, *amqpx.Delivery) error { return nil }); !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a later consumer: %v", err)
		}
	})
}

// Who may not declare uses what is there, and is told what is missing.
func TestDeclareNothing(t *testing.T) {
	guest := amqptest.User{Name: "guest", Password: "guest", Configure: ".*", Write: ".*", Read: ".*"}
	producer := amqptest.User{Name: "producer", Password: "p", Write: ".*", Read: ".*"}
	onMemory(t, amqptest.Options{Version: "4.0.5", Users: []amqptest.User{guest, producer}}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		cfg := amqpx.Config{URL: srv.URLAs("producer"), Dial: srv.Dial, Declare: amqpx.DeclareNothing}
		other := cfg
		other.Prefix = "none"
		if _, err := amqpx.Open(t.Context(), other); err == nil || !strings.Contains(err.Error(), "none.") {
			t.Errorf("without any topology: %v", err)
		}
		mustSend(t, c, amqpx.Message{Queue: "q"})
		p, err := amqpx.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		before := len(srv.Queues()) + len(srv.Exchanges())
		mustSend(t, p, amqpx.Message{Queue: "q", Delay: time.Hour})
		if err := p.Send(t.Context(), amqpx.Message{Queue: "missing"}); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("a queue that is not there: %v", err)
		}
		if err := p.Send(t.Context(), amqpx.Message{Exchange: "missing", RoutingKey: "k"}); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("an exchange that is not there: %v", err)
		}
		if _, ok := srv.Queue("missing"); ok || len(srv.Queues())+len(srv.Exchanges()) != before {
			t.Error("it has declared something")
		}
		after(time.Hour)
		if q, _ := srv.Queue("q"); q.Ready != 2 {
			t.Errorf("%d came", q.Ready)
		}
	})
}

// Credentials that are wrong are final, as is what conflicts with the broker's own.
func TestOpenIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("delay.parked", true, false, false, false, amqp.Table{"x-max-length": int64(1)}); err != nil {
			t.Fatal(err)
		}
		_, err = amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		if ce, ok := errors.AsType[*topology.ConflictError](err); !ok || ce.Name != "delay.parked" {
			t.Errorf("over a queue that is another: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		wrong := strings.Replace(srv.URL(), "guest:guest", "guest:secret", 1)
		if _, err := amqpx.Open(ctx, amqpx.Config{URL: wrong, Dial: srv.Dial}); err == nil || strings.Contains(err.Error(), "secret") || time.Since(began) > time.Minute {
			t.Errorf("with the wrong password, after %v: %v", time.Since(began), err)
		}
		if _, err := amqpx.Open(ctx, amqpx.Config{URL: strings.Replace(srv.URL(), "/?", "/none?", 1), Dial: srv.Dial}); err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("with a virtual host that is not there: %v", err)
		}
	})
}

// A batch is sent whole across several windows and a lost connection, and one
// message that cannot be sent keeps none of it from being told of.
func TestSendBatch(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{MaxInFlight: 16}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		msgs := make([]amqpx.Message, 300)
		for i := range msgs {
			msgs[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: fmt.Sprint("q", i%3), Delay: time.Duration(i%7) * time.Second}
		}
		srv.CutAt("basic.publish", 150)
		if err := c.SendBatch(t.Context(), msgs); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		ids := map[string]bool{}
		for i := range 3 {
			q, _ := srv.Queue(fmt.Sprint("q", i))
			for _, m := range q.Messages {
				ids[m.MessageId] = true
			}
		}
		if len(ids) != len(msgs) {
			t.Errorf("%d of %d came", len(ids), len(msgs))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		undo := srv.Nack("q1")
		err := c.SendBatch(ctx, []amqpx.Message{{ID: "a", Queue: "q0"}, {ID: "b", Queue: "q1"}, {ID: "c", Queue: "q2"}})
		undo()
		be, ok := errors.AsType[*amqpx.BatchError](err)
		if !ok || !strings.Contains(be.Error(), "1") {
			t.Fatalf("a batch of which one was refused: %v", err)
		}
		for i, queue := range []string{"q0", "q2"} {
			q, _ := srv.Queue(queue)
			if last := q.Messages[len(q.Messages)-1].MessageId; last != []string{"a", "c"}[i] {
				t.Errorf("the last of %s is %s", queue, last)
			}
		}
	})
}

// auto takes the queue of a delay that is declared, the plugin in its range, and
// the buckets otherwise; each message comes when it is due.
func TestAuto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5", Plugin: true})
		defer srv.Close()
		bucket, err := dlx.NewBucket(dlx.BucketConfig{})
		if err != nil {
			t.Fatal(err)
		}
		ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{30 * time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		plugged, err := plugin.New(plugin.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := amqpx.NewAuto(amqpx.AutoConfig{Bucket: bucket, TTL: ttl, Plugin: plugged, PluginMin: time.Second, PluginMax: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Strategy: s})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Strategy().Name() != "auto" {
			t.Errorf("the strategy is %s", c.Strategy().Name())
		}
		mustSend(t, c,
			amqpx.Message{ID: "declared", Queue: "q", Delay: 30 * time.Minute},
			amqpx.Message{ID: "any", Queue: "q", Delay: 7 * time.Minute},
			amqpx.Message{ID: "short", Queue: "q", Delay: 10 * time.Second})
		if q, _ := srv.Queue("delay.ttl.30m"); q.Ready != 1 || srv.Publishes("delay.plugin") != 1 {
			t.Errorf("the ttl queue holds %d, the plugin got %d", q.Ready, srv.Publishes("delay.plugin"))
		}
		began, came := time.Now(), map[string]time.Duration{}
		stop := consuming(t, c, "q", func(_ context.Context, d *amqpx.Delivery) error {
			came[d.ID] = time.Since(began).Truncate(time.Second)
			return nil
		}, amqpx.Concurrency(1))
		after(time.Hour)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if want := map[string]time.Duration{"declared": 30 * time.Minute, "any": 7 * time.Minute, "short": 10 * time.Second}; !maps.Equal(came, want) {
			t.Errorf("they came after %v", came)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: c.MaxDelay() + time.Second}); !errors.Is(err, topology.ErrDelay) {
			t.Errorf("over the longest delay: %v", err)
		}
	})
}

// A consumer whose queue somebody deletes makes it again and goes on; one whose
// acknowledgement takes too long loses the message to the broker, which delivers
// it again.
func TestAConsumerGoesOn(t *testing.T) {
	onMemory(t, amqptest.Options{ConsumerTimeout: time.Hour}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		var seen []string
		slow := true
		stop := consuming(t, c, "q", func(ctx context.Context, d *amqpx.Delivery) error {
			seen = append(seen, d.ID)
			if d.ID == "slow" && slow {
				slow = false
				<-time.After(3 * time.Hour)
			}
			return nil
		}, amqpx.Concurrency(1))
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDelete("q", false, false, false); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		mustSend(t, c, amqpx.Message{ID: "one", Queue: "q"}, amqpx.Message{ID: "slow", Queue: "q"})
		after(6 * time.Hour)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(seen, []string{"one", "slow", "slow"}) {
			t.Errorf("handled %q", seen)
		}
		if q, _ := srv.Queue("q"); q.Ready != 0 || q.Unacked != 0 {
			t.Errorf("%d ready, %d held", q.Ready, q.Unacked)
		}
	})
}

// An exchange gets its message with the routing key, after the delay, from an
// exchange that exists before the message is sent.
func TestExchangeDestinations(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		if err := c.Send(t.Context(), amqpx.Message{Exchange: "events", RoutingKey: "k"}); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("an exchange that is not there: %v", err)
		}
		err := c.Apply(t.Context(), topology.Topology{
			Exchanges: []topology.Exchange{{Name: "events", Kind: "topic"}},
			Queues:    []topology.Queue{{Name: "audit"}},
			Bindings:  []topology.Binding{{Exchange: "events", Queue: "audit", RoutingKey: "order.*"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		mustSend(t, c, amqpx.Message{Exchange: "events", RoutingKey: "order.paid", Delay: time.Hour})
		after(2 * time.Hour)
		q, _ := srv.Queue("audit")
		if q.Ready != 1 || q.Messages[0].RoutingKey != "order.paid" || q.Messages[0].Exchange != "events" {
			t.Errorf("the queue behind the exchange holds %+v", q.Messages)
		}
	})
}
