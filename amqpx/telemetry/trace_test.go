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
			t.Errorf("the send's span has the kind %v and the parent %v, want a producer and the request", send.SpanKind(), send.Parent())
		}
		if process.Parent().IsValid() || process.SpanContext().TraceID() == send.SpanContext().TraceID() || process.SpanKind() != api.SpanKindConsumer {
			t.Errorf("the handler's span has the kind %v, the parent %v and the trace %v, want a consumer without a parent in a trace other than the send's",
				process.SpanKind(), process.Parent(), process.SpanContext().TraceID())
		}
		s.isLinked(send.SpanContext(), process)
		if inside.SpanID() != process.SpanContext().SpanID() || tenant != "acme" {
			t.Errorf(`the handler's context has the span %v and the tenant %q, want %v and "acme"`, inside.SpanID(), tenant, process.SpanContext().SpanID())
		}
		for key, want := range map[string]string{
			"messaging.system": "rabbitmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "messaging.message.id": "a", "rabbitdelay.delay": "86400", "rabbitdelay.tries": "1",
		} {
			if got := text(send, key); got != want {
				t.Errorf("%s of the send's span is %q, want %q", key, got, want)
			}
		}
		for key, want := range map[string]string{
			"messaging.operation.type": "process", "messaging.destination.name": "orders", "messaging.message.id": "a",
			"rabbitdelay.outcome": "acked", "rabbitdelay.attempt": "1",
		} {
			if got := text(process, key); got != want {
				t.Errorf("%s of the handler's span is %q, want %q", key, got, want)
			}
		}
		for _, span := range s.spans.Ended() {
			for _, a := range span.Attributes() {
				if strings.Contains(a.Value.String(), "clock.") {
					t.Errorf("span %s has the attribute %v, want no internal routing key", span.Name(), a)
				}
			}
		}
		if n := len(s.spans.Started()); n != len(s.spans.Ended()) {
			t.Errorf("%d spans have ended, want %d, as many as were started", len(s.spans.Ended()), n)
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
			t.Fatalf("the trace: got %d spans of sends and %d of handlers, want 2 and 2", len(sends), len(processes))
		}
		for i, p := range processes {
			if p.Parent().SpanID() != sends[0].SpanContext().SpanID() || len(p.Links()) != 0 {
				t.Errorf("the span of attempt %d has the parent %v and %d links, want the first send's span %v and 0", i+1, p.Parent().SpanID(), len(p.Links()), sends[0].SpanContext().SpanID())
			}
		}
		if sends[1].Parent().SpanID() != processes[0].SpanContext().SpanID() {
			t.Errorf("the span of the retry's send has the parent %v, want the failed attempt's span %v", sends[1].Parent().SpanID(), processes[0].SpanContext().SpanID())
		}
	})
}

// A retry, a snoozed message, a dead letter and a requeued dead letter keep the trace context with which the message
// was first sent.
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
			t.Errorf("the dead letter has the traceparent %q, want the first send's %q", got, traceparent(first))
		}
		stop = s.consume("orders", failing(0))
		_, err := inspect.Requeue(t.Context(), s.Client, inspect.RequeueOptions{Queue: "orders.dead"})
		check(t, err)
		after(time.Minute)
		stop()

		processes := s.named("process orders")
		if len(processes) != 4 {
			t.Fatalf("after retries and a requeue: got %d spans of handlers, want 4", len(processes))
		}
		s.isLinked(first, processes...)
		s.isLinked(first, s.named("send orders")[1:]...)
		dead := s.one("send orders.dead")
		s.isLinked(first, dead)
		if dead.Parent().SpanID() != processes[2].SpanContext().SpanID() {
			t.Errorf("the span of the dead letter's send has the parent %v, want the span of the rejecting handler %v", dead.Parent().SpanID(), processes[2].SpanContext().SpanID())
		}
		if text(dead, "messaging.destination.name") != "orders.dead" {
			t.Errorf("the span of the dead letter's send has the destination %q, want orders.dead", text(dead, "messaging.destination.name"))
		}
		for i, want := range []struct {
			outcome, class string
			status         codes.Code
		}{{"retried", "_OTHER", codes.Error}, {"snoozed", "", codes.Unset}, {"dead-lettered", "rejected", codes.Error}, {"acked", "", codes.Unset}} {
			p := processes[i]
			if text(p, "rabbitdelay.outcome") != want.outcome || text(p, "error.type") != want.class || p.Status().Code != want.status {
				t.Errorf("span of handler %d: got the outcome %q, the error type %q and the status %v, want %+v", i, text(p, "rabbitdelay.outcome"), text(p, "error.type"), p.Status(), want)
			}
		}
	})
}

// All messages of a task have the trace context in which the task was scheduled, including those after it was
// rescheduled, run early or revived.
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
				t.Errorf("%d spans of handlers belong to task %s, want %d", count[id], id, want)
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

// sendOf returns the context of the first span in which the message with the given id was sent.
func (s *site) sendOf(id string) api.SpanContext {
	for _, span := range s.named("send tasks") {
		if text(span, "messaging.message.id") == id {
			return span.SpanContext()
		}
	}
	return api.SpanContext{}
}

// A trace context that the program has put into the headers itself is kept.
func TestContextOfTheProgramStays(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		_, create := s.tracer.Start(t.Context(), "create")
		create.End()
		own := traceparent(create.SpanContext())
		m := amqpx.Message{Queue: "orders", Headers: amqp.Table{"traceparent": own, "tracestate": "a=b"}}
		check(t, s.Send(t.Context(), m))
		if got := s.headerOf("orders", "traceparent"); got != own || s.headerOf("orders", "tracestate") != "a=b" {
			t.Errorf("the sent message: got the traceparent %q and the tracestate %q, want the program's: %q and a=b", got, s.headerOf("orders", "tracestate"), own)
		}
		s.isLinked(create.SpanContext(), s.one("send orders"))
	})
}

// A trace context that cannot be read is replaced when a message is sent, and ignored when it is received.
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
			t.Fatalf("with invalid trace contexts: got %d spans of sends and %d of handlers, want %d and %d", len(sends), len(processes), len(broken), 2*len(broken))
		}
		linked := 0
		for _, p := range processes {
			linked += len(p.Links())
			for _, l := range p.Links() {
				if l.SpanContext.TraceState().Len() != 0 {
					t.Errorf("a link has the tracestate %q, want none, because it belongs to another trace", l.SpanContext.TraceState())
				}
			}
		}
		if linked != len(broken) {
			t.Errorf("spans of handlers: got %d links, want %d, one for each message that the client sent", linked, len(broken))
		}
	})
}

// A message whose headers have the maximum size is sent without a trace context.
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
			t.Errorf("a sent message: got the traceparent %q in headers of the maximum size, want none", got)
		}
		stop := s.consume("orders", failing(0))
		after(time.Second)
		stop()
		if n := len(s.named("process orders")); n != 2 {
			t.Errorf("messages with headers of the maximum size: got %d spans of handlers, want 2", n)
		}
	})
}

// If a span is not sampled, its context is not written into the message, because there would be nothing to link to.
// With ParentSpans, it is written nevertheless, so that the receiver does not sample its span either. Baggage is always
// written.
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
			t.Errorf(`ParentSpans = %t: got the headers %v, want a traceparent: %t, and the baggage "tenant=blue"`, parents, added, parents)
		}
	}
}

// Without an SDK, the caller's trace context is passed through.
func TestNoProviders(t *testing.T) {
	tel, err := telemetry.New(telemetry.Config{})
	check(t, err)
	sent := api.NewSpanContext(api.SpanContextConfig{TraceID: api.TraceID{1}, SpanID: api.SpanID{2}, TraceFlags: api.FlagsSampled})
	hook, added := tel.Hook(), amqp.Table{}
	ctx := hook.SendStart(api.ContextWithSpanContext(t.Context(), sent), amqpx.Message{Queue: "orders"}, added)
	hook.SendEnd(ctx, amqpx.SendEnd{})
	if added["traceparent"] != traceparent(sent) {
		t.Errorf("SendStart: got the headers %v, want the caller's traceparent %q", added, traceparent(sent))
	}
	d := &amqpx.Delivery{Queue: "orders", Headers: added}
	ctx = hook.HandleStart(t.Context(), d)
	hook.HandleEnd(ctx, amqpx.HandleEnd{Delivery: d, Outcome: amqpx.OutcomeAcked})
	if got := api.SpanContextFromContext(ctx); got.TraceID() != sent.TraceID() {
		t.Errorf("the handler's context has the trace %v, want the sender's %v", got.TraceID(), sent.TraceID())
	}
}
