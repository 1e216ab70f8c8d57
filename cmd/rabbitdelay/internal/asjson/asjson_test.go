package asjson_test

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func expect(t *testing.T, v any, want string) {
	t.Helper()
	if got, err := json.Marshal(v); err != nil || string(got) != want {
		t.Errorf("got the JSON %s (error %v)\nwant %s", got, err, want)
	}
}

// Required fields are written even if they are zero, and other fields only if they are set.
func TestTaskOf(t *testing.T) {
	expect(t, asjson.TaskOf(schedule.TaskRow{
		Task: schedule.Task{ID: "a", Queue: "q", DeliverAt: noon}, Status: schedule.StatusPending, Version: 1,
		CreatedAt: noon, UpdatedAt: noon,
	}), `{"id":"a","status":"pending","due":"2026-01-31T12:00:00.000Z","version":1,"attempts":0,"sends":0,`+
		`"created":"2026-01-31T12:00:00.000Z","updated":"2026-01-31T12:00:00.000Z","queue":"q"}`)
	expect(t, asjson.TaskOf(schedule.TaskRow{
		Task: schedule.Task{
			ID: "b", Exchange: "e", RoutingKey: "k", DeliverAt: noon.In(time.FixedZone("", 3600)),
			ContentType: "text/plain", Type: "t", CorrelationID: "c", Priority: 255, ExpiresAfter: 2 * time.Hour,
			Headers: map[string]string{"tenant": "blue"}, Tags: []string{"vip"}, Body: []byte{0xff},
		},
		Status: schedule.StatusDone, Version: 2, Attempts: 3, LastError: "no", Sends: 4, SentAt: noon, CreatedAt: noon,
		UpdatedAt: noon, FinishedAt: noon,
	}), `{"id":"b","status":"done","due":"2026-01-31T12:00:00.000Z","version":2,"attempts":3,"last_error":"no","sends":4,`+
		`"sent":"2026-01-31T12:00:00.000Z","created":"2026-01-31T12:00:00.000Z","updated":"2026-01-31T12:00:00.000Z","finished":"2026-01-31T12:00:00.000Z",`+
		`"exchange":"e","routing_key":"k","body_base64":"/w==","content_type":"text/plain","type":"t","correlation_id":"c","priority":255,"expires_after":"2h",`+
		`"headers":{"tenant":"blue"},"tags":["vip"]}`)
}

// A message with any headers can be encoded.
func TestMessagesOf(t *testing.T) {
	list := asjson.MessagesOf([]inspect.DeadLetter{{
		Delivery: &amqpx.Delivery{ID: "1", Body: []byte("x")},
	}, {
		Delivery: &amqpx.Delivery{ID: "2", Headers: amqp.Table{
			"nan": math.NaN(), "deep": amqp.Table{"list": []any{math.Inf(1), float32(math.Inf(-1)), int64(1), "x", amqp.Table{}}},
		}},
	}})
	if len(list) != 2 || list[0].Position != 1 || list[1].Position != 2 || len(list[0].Headers) != 0 {
		t.Errorf("got %+v, want 2 elements with the positions 1 and 2, the first without headers", list)
	}
	expect(t, list[1].Headers, `{"deep":{"list":["+Inf","-Inf",1,"x",{}]},"nan":"NaN"}`)
}

func TestRecurringOf(t *testing.T) {
	r := schedule.Recurring{
		Name: "pulse", Every: 90 * time.Minute, Misfire: schedule.MisfireOnce, MisfireLimit: 100,
		Overlap: schedule.OverlapAllow, TimeZone: "UTC",
		Task: schedule.Task{Queue: "q", Body: []byte("x")}, Version: 1, CreatedAt: noon, UpdatedAt: noon,
	}
	expect(t, asjson.RecurringOf(r, noon, 2), `{"name":"pulse","state":"active","every":"1h30m","misfire":"once","overlap":"allow","queue":"q","body":"x",`+
		`"next":["2026-01-31T13:30:00.000Z","2026-01-31T15:00:00.000Z"],"version":1,"created":"2026-01-31T12:00:00.000Z","updated":"2026-01-31T12:00:00.000Z"}`)
	r.Cron, r.Every, r.TimeZone, r.Misfire, r.Paused = "@daily", 0, "Europe/Berlin", schedule.MisfireAll, true
	expect(t, asjson.RecurringOf(r, noon, 2), `{"name":"pulse","state":"paused","cron":"@daily","time_zone":"Europe/Berlin",`+
		`"misfire":"all","misfire_limit":100,"overlap":"allow","queue":"q","body":"x",`+
		`"next":[],"version":1,"created":"2026-01-31T12:00:00.000Z","updated":"2026-01-31T12:00:00.000Z"}`)
}

// In JSON, a list that was not read is null, and a list that was read and is empty is [].
func TestTraceOf(t *testing.T) {
	expect(t, asjson.TraceOf(trace.Trace{ID: "x", Why: "nothing is known"}),
		`{"id":"x","why":"nothing is known","found":false,"tasks_read":false,"effects":null,"records":null,"dead_letters":null,"searched":null,"scopes":null,`+
			`"delay_queues_not_empty":null,"destinations_not_empty":null,"routes_not_empty":null,"unchecked":[],"notes":[]}`)
	expect(t, asjson.TraceOf(trace.Trace{
		ID: "x", Why: "nothing is known", TasksKnown: true, Effects: []taskview.Effect{}, Records: []idempotency.Record{}, Scopes: []string{},
		DeadLetters: []inspect.DeadLetter{}, Searched: []trace.Searched{}, Waiting: []status.Delay{}, Unsearched: []string{}, Stuck: []status.Destination{},
	}),
		`{"id":"x","why":"nothing is known","found":false,"tasks_read":true,"effects":[],"records":[],"dead_letters":[],"searched":[],"scopes":[],`+
			`"delay_queues_not_empty":[],"destinations_not_empty":[],"routes_not_empty":[],"unchecked":[],"notes":[]}`)
	got := asjson.TraceOf(trace.Trace{
		ID: "x", Task: &schedule.TaskRow{Task: schedule.Task{ID: "x"}}, Effects: []taskview.Effect{{Version: 1, Queue: "q", LeaseUntil: noon}},
		Records: []idempotency.Record{{Scope: "q", Guarded: true, ProcessedAt: noon}},
	})
	if !got.Found || got.Task == nil || got.Task.ID != "x" {
		t.Errorf(`got %+v, want Found = true and the task x`, got)
	}
	expect(t, got.Effects, `[{"version":1,"queue":"q","attempts":0,"lease_until":"2026-01-31T12:00:00.000Z"}]`)
	expect(t, got.Records, `[{"scope":"q","guarded":true,"processed":"2026-01-31T12:00:00.000Z"}]`)
}

// The schema of the API lists every status of a task and every state of a recurring task.
func TestEnums(t *testing.T) {
	enum := func(of reflect.Type, field string) []string {
		f, _ := of.FieldByName(field)
		return strings.Split(f.Tag.Get("enum"), ",")
	}
	if got := enum(reflect.TypeFor[asjson.Task](), "Status"); !slices.Equal(got, rows.Statuses) {
		t.Errorf("the schema's statuses of a task: got %q, want %q", got, rows.Statuses)
	}
	states := []string{string(taskview.RecurringActive), string(taskview.RecurringPaused), string(taskview.RecurringEnded), string(taskview.RecurringInvalid)}
	if got := enum(reflect.TypeFor[asjson.Recurring](), "State"); !slices.Equal(got, states) {
		t.Errorf("the schema's states of a recurring task: got %q, want %q", got, states)
	}
}
