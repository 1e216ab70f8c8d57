package telemetry_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
)

func TestSpansAreLinkedAcrossTheDelay(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		member, err := baggage.NewMember("tenant", "acme")
		check(t, err)
		bag, err := baggage.New(member)
		check(t, err)
		var inside api.SpanContext
		var tenant string
		stop := s.consume("orders", func(ctx context.Context, _ *amqpx.Delivery) error {
			inside, tenant = api.SpanContextFromContext(ctx), baggage.FromContext(ctx).Member("tenant").Value()
			return nil
		})
		ctx, request := s.tracer.Start(baggage.ContextWithBaggage(t.Context(), bag), "request")
		check(t, s.Send(ctx, amqpx.Message{ID: "a", Queue: "orders", Delay: 24 * time.Hour}))
		request.End()
		after(25 * time.Hour)
		stop()

		send, process := s.one("send orders"), s.one("process orders")
		if send.Parent().SpanID() != request.SpanContext().SpanID() || send.SpanKind() != api.SpanKindProducer {
			t.Errorf("the send is a %v below %v, want a producer below the request", send.SpanKind(), send.Parent())
		}
		if process.Parent().IsValid() || process.SpanContext().TraceID() == send.SpanContext().TraceID() || process.SpanKind() != api.SpanKindConsumer {
			t.Errorf("the handler's %v has the parent %v, want a consumer with a trace of its own", process.SpanKind(), process.Parent())
		}
		s.isLinked(send.SpanContext(), process)
		if inside.SpanID() != process.SpanContext().SpanID() || tenant != "acme" {
			t.Errorf(`the handler has span %v and tenant %q, want its own span and "acme"`, inside.SpanID(), tenant)
		}
		for key, want := range map[string]string{
			"messaging.system": "rabbitmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "messaging.message.id": "a", "rabbitdelay.delay": "86400", "rabbitdelay.tries": "1",
		} {
			if got := text(send, key); got != want {
				t.Errorf("%s of the send is %q, want %q", key, got, want)
			}
		}
		for key, want := range map[string]string{
			"messaging.operation.type": "process", "messaging.destination.name": "orders", "messaging.message.id": "a",
			"rabbitdelay.outcome": "acked", "rabbitdelay.attempt": "1",
		} {
			if got := text(process, key); got != want {
				t.Errorf("%s of the handler is %q, want %q", key, got, want)
			}
		}
		for _, span := range s.spans.Ended() {
			for _, a := range span.Attributes() {
				if strings.Contains(a.Value.String(), "clock.") {
					t.Errorf("span %s has a routing key with digits as a value: %v", span.Name(), a)
				}
			}
		}
		if n := len(s.spans.Started()); n != len(s.spans.Ended()) {
			t.Errorf("%d spans were started, but %d ended", n, len(s.spans.Ended()))
		}
	})
}

func TestParentSpansMakeOneTrace(t *testing.T) {
	onSite(t, telemetry.Config{ParentSpans: true}, func(t *testing.T, s *site) {
		stop := s.consume("orders", failing(1))
		check(t, s.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: time.Second}))
		after(time.Minute)
		stop()
		sends, processes := s.named("send orders"), s.named("process orders")
		if len(sends) != 2 || len(processes) != 2 {
			t.Fatalf("%d sends and %d handlers, want 2 and 2", len(sends), len(processes))
		}
		for i, p := range processes {
			if p.Parent().SpanID() != sends[0].SpanContext().SpanID() || len(p.Links()) != 0 {
				t.Errorf("attempt %d is below %v, want the first send", i+1, p.Parent().SpanID())
			}
		}
		if sends[1].Parent().SpanID() != processes[0].SpanContext().SpanID() {
			t.Error("the span of the retry is not a child of the span of the failed attempt")
		}
	})
}

// A retry, a snooze, the dead letter and a requeued dead letter keep the context with which the
// message was first sent.
func TestContextSurvivesRetriesAndRequeues(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		snoozed := false
		stop := s.consume("orders", func(_ context.Context, d *amqpx.Delivery) error {
			switch {
			case d.Attempt == 1:
				return errAgain
			case !snoozed:
				snoozed = true
				return amqpx.Snooze(time.Hour)
			}
			return amqpx.Reject(errors.New("never"))
		})
		check(t, s.Send(t.Context(), amqpx.Message{ID: "a", Queue: "orders", Delay: time.Second}))
		after(2 * time.Hour)
		stop()
		first := s.named("send orders")[0].SpanContext()
		if got := s.headerOf("orders.dead", "traceparent"); got != traceparent(first) {
			t.Errorf("the dead letter has traceparent %q, want the first send's %q", got, traceparent(first))
		}
		stop = s.consume("orders", failing(0))
		_, err := inspect.Requeue(t.Context(), s.Client, inspect.RequeueOptions{Queue: "orders.dead"})
		check(t, err)
		after(time.Minute)
		stop()

		processes := s.named("process orders")
		if len(processes) != 4 {
			t.Fatalf("%d handlers ran, want 4", len(processes))
		}
		s.isLinked(first, processes...)
		s.isLinked(first, s.named("send orders")[1:]...)
		dead := s.one("send orders.dead")
		s.isLinked(first, dead)
		if dead.Parent().SpanID() != processes[2].SpanContext().SpanID() {
			t.Error("the span of the dead letter's send is not a child of the span of the handler that rejected")
		}
		if text(dead, "messaging.destination.name") != "orders.dead" {
			t.Error("the dead letter's destination is not its queue")
		}
		for i, want := range []struct {
			outcome, class string
			status         codes.Code
		}{{"retried", "_OTHER", codes.Error}, {"snoozed", "", codes.Unset}, {"dead-lettered", "rejected", codes.Error}, {"acked", "", codes.Unset}} {
			p := processes[i]
			if text(p, "rabbitdelay.outcome") != want.outcome || text(p, "error.type") != want.class || p.Status().Code != want.status {
				t.Errorf("handler %d: %s, %s, %v, want %v", i, text(p, "rabbitdelay.outcome"), text(p, "error.type"), p.Status(), want)
			}
		}
	})
}

// The messages of a task have the context in which it was scheduled: the first message, the one
// after a reschedule, and the one of a revived task.
func TestContextOfATaskIsThatOfItsScheduling(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		ctx, request := s.tracer.Start(t.Context(), "request")
		due := time.Now().Add(time.Minute)
		for _, id := range []string{"plain", "moved", "fired", "revived"} {
			check(t, s.store.Schedule(ctx, schedule.NoTx, schedule.Task{ID: id, Queue: "tasks", DeliverAt: due, Headers: map[string]string{"own": id}}))
		}
		check(t, s.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "without", Queue: "tasks", DeliverAt: due}))
		request.End()
		rejected := false
		handle := schedule.Handler(s.db, func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
			if d.ID == "revived" && !rejected {
				rejected = true
				return amqpx.Reject(errors.New("not yet"))
			}
			return nil
		}, schedule.OnSkip(s.telemetry.TaskSkipped))
		stopRelay := s.run(s.store.Run)
		after(time.Second)
		check(t, s.store.Reschedule(t.Context(), schedule.NoTx, "moved", due.Add(time.Minute)))
		check(t, s.store.RunNow(t.Context(), schedule.NoTx, "fired"))
		stop := s.consume("tasks", handle)
		after(3 * time.Minute)
		if _, err := inspect.Requeue(t.Context(), s.Client, inspect.RequeueOptions{Queue: "tasks.dead", Tasks: s.store}); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		stop()
		stopRelay()
		count := map[string]int{}
		for _, p := range s.named("process tasks") {
			id := text(p, "messaging.message.id")
			count[id]++
			if id == "without" {
				s.isLinked(s.sendOf("without"), p)
				continue
			}
			s.isLinked(request.SpanContext(), p)
		}
		for id, want := range map[string]int{"plain": 1, "moved": 2, "fired": 2, "revived": 2, "without": 1} {
			if count[id] != want {
				t.Errorf("%s was handled %d times, want %d", id, count[id], want)
			}
		}
		for _, send := range s.named("send tasks") {
			if text(send, "messaging.message.id") != "without" {
				s.isLinked(request.SpanContext(), send)
			}
		}
		s.metrics().want(t, 2, "rabbitdelay.skipped", "rabbitdelay.reason", "stale", "messaging.destination.name", "tasks")
	})
}

// sendOf returns the context of the first span that sent a message.
func (s *site) sendOf(id string) api.SpanContext {
	for _, span := range s.named("send tasks") {
		if text(span, "messaging.message.id") == id {
			return span.SpanContext()
		}
	}
	return api.SpanContext{}
}

// A context that the program itself put into the headers is kept.
func TestContextOfTheProgramStays(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		_, create := s.tracer.Start(t.Context(), "create")
		create.End()
		own := traceparent(create.SpanContext())
		m := amqpx.Message{Queue: "orders", Headers: amqp.Table{"traceparent": own, "tracestate": "a=b"}}
		check(t, s.Send(t.Context(), m))
		if got := s.headerOf("orders", "traceparent"); got != own || s.headerOf("orders", "tracestate") != "a=b" {
			t.Errorf("traceparent %q, want the program's %q", got, own)
		}
		s.isLinked(create.SpanContext(), s.one("send orders"))
	})
}

// A context that cannot be read is replaced, and causes no failure.
func TestBrokenContexts(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		broken := []any{
			"", "00-1-2-01", strings.Repeat("0", 1<<10),
			"00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("0", 16) + "-01", int64(7), []byte("00"), nil,
			amqp.Table{"a": "b"},
		}
		stop := s.consume("orders", failing(0))
		for _, b := range broken {
			check(t, s.Send(t.Context(), amqpx.Message{Queue: "orders", Headers: amqp.Table{"traceparent": b, "tracestate": "foreign=1", "baggage": "%%%;"}}))
		}
		conn, err := s.srv.Connect()
		check(t, err)
		defer conn.Close()
		ch, err := conn.Channel()
		check(t, err)
		for _, b := range broken { // published by another program
			check(t, ch.PublishWithContext(t.Context(), "", "orders", false, false, amqp.Publishing{Headers: amqp.Table{"traceparent": b}}))
		}
		after(time.Minute)
		stop()
		sends, processes := s.named("send orders"), s.named("process orders")
		if len(sends) != len(broken) || len(processes) != 2*len(broken) {
			t.Fatalf("%d sends and %d handlers, want %d and %d", len(sends), len(processes), len(broken), 2*len(broken))
		}
		linked := 0
		for _, p := range processes {
			linked += len(p.Links())
			for _, l := range p.Links() {
				if l.SpanContext.TraceState().Len() != 0 {
					t.Error("the link has another trace's tracestate")
				}
			}
		}
		if linked != len(broken) {
			t.Errorf("%d links, want one for each message that was sent here", linked)
		}
	})
}

// A message whose headers have the maximum size is sent without a context.
func TestHeadersAtTheLimit(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		size := 100<<10 - len("full") - 2
		for ; ; size-- { // the largest value that a client accepts
			m := amqpx.Message{Queue: "orders", Headers: amqp.Table{"full": strings.Repeat("x", size)}}
			if s.Check(m) == nil {
				check(t, s.Send(t.Context(), m))
				check(t, s.SendBatch(t.Context(), []amqpx.Message{m}))
				break
			}
		}
		if got := s.headerOf("orders", "traceparent"); got != "" {
			t.Errorf("a message without room for a traceparent has the traceparent %q, want none", got)
		}
		stop := s.consume("orders", failing(0))
		after(time.Second)
		stop()
		if n := len(s.named("process orders")); n != 2 {
			t.Errorf("%d handlers, want 2", n)
		}
	})
}

// The context of a span that is not sampled is not written into the message, because there would be nothing to link to.
// The decision of the parent and the baggage are passed on.
func TestContextThatIsNotSampled(t *testing.T) {
	member, err := baggage.NewMember("tenant", "blue")
	check(t, err)
	carried, err := baggage.New(member)
	check(t, err)
	for _, parents := range []bool{false, true} {
		tel, err := telemetry.New(telemetry.Config{
			TracerProvider: trace.NewTracerProvider(trace.WithSampler(trace.NeverSample())), MeterProvider: metric.NewMeterProvider(),
			Propagator: w3c, ParentSpans: parents,
		})
		check(t, err)
		hook, added := tel.Hook(), amqp.Table{}
		hook.SendEnd(hook.SendStart(baggage.ContextWithBaggage(t.Context(), carried), amqpx.Message{Queue: "orders"}, added), amqpx.SendEnd{})
		if _, ok := added["traceparent"]; ok != parents || added["baggage"] != "tenant=blue" {
			t.Errorf(`ParentSpans %v: headers %v, want traceparent present = %v and baggage "tenant=blue"`, parents, added, parents)
		}
	}
}

// Without an SDK, a context is passed through.
func TestNoProviders(t *testing.T) {
	tel, err := telemetry.New(telemetry.Config{})
	check(t, err)
	sent := api.NewSpanContext(api.SpanContextConfig{TraceID: api.TraceID{1}, SpanID: api.SpanID{2}, TraceFlags: api.FlagsSampled})
	hook, added := tel.Hook(), amqp.Table{}
	ctx := hook.SendStart(api.ContextWithSpanContext(t.Context(), sent), amqpx.Message{Queue: "orders"}, added)
	hook.SendEnd(ctx, amqpx.SendEnd{})
	if added["traceparent"] != traceparent(sent) {
		t.Errorf("got the headers %v, want the context of the caller", added)
	}
	d := &amqpx.Delivery{Queue: "orders", Headers: added}
	ctx = hook.HandleStart(t.Context(), d)
	hook.HandleEnd(ctx, amqpx.HandleEnd{Delivery: d, Outcome: amqpx.OutcomeAcked})
	if got := api.SpanContextFromContext(ctx); got.TraceID() != sent.TraceID() {
		t.Errorf("the handler has the context %v, want the sender's", got)
	}
}
