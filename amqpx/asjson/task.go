package asjson

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// Task is a durable task.
type Task struct {
	ID            string            `json:"id"`
	Queue         string            `json:"queue,omitempty"`
	Exchange      string            `json:"exchange,omitempty"`
	RoutingKey    string            `json:"routing_key,omitempty"`
	Status        string            `json:"status"                   enum:"pending,running,done,cancelled,expired,failed"`
	Due           string            `json:"due"                      format:"date-time"`
	Version       int64             `json:"version"`
	Attempts      int               `json:"attempts"`
	LastError     string            `json:"last_error,omitempty"`
	Sends         int               `json:"sends"`
	Sent          string            `json:"sent,omitempty"           format:"date-time"`
	Created       string            `json:"created"                  format:"date-time"`
	Updated       string            `json:"updated"                  format:"date-time"`
	Finished      string            `json:"finished,omitempty"       format:"date-time"`
	ContentType   string            `json:"content_type,omitempty"`
	Type          string            `json:"type,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	Priority      int               `json:"priority,omitempty"`
	ExpiresAfter  string            `json:"expires_after,omitempty"`
	UniqueKey     string            `json:"unique_key,omitempty"     doc:"at most one pending task has it"`
	Headers       map[string]string `json:"headers,omitempty"`
	Tags          []string          `json:"tags,omitempty"`
	Body          string            `json:"body,omitempty"`
	BodyBase64    string            `json:"body_base64,omitempty"    doc:"instead of body when that is not UTF-8"`
}

// TaskOf returns a task in JSON.
func TaskOf(t schedule.Task) Task {
	out := Task{
		ID: t.ID, Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey, Status: string(t.Status),
		Due: shown.Instant(t.DeliverAt), Version: t.Version, Attempts: t.Attempts, LastError: t.LastError, Sends: t.Sends,
		Sent: Instant(t.SentAt), Created: shown.Instant(t.CreatedAt), Updated: shown.Instant(t.UpdatedAt), Finished: Instant(t.FinishedAt),
		ContentType: t.ContentType, Type: t.Type, CorrelationID: t.CorrelationID, Priority: int(t.Priority),
		ExpiresAfter: Duration(t.ExpiresAfter), UniqueKey: t.UniqueKey, Headers: t.Headers, Tags: t.Tags,
	}
	out.Body, out.BodyBase64 = Text(t.Body)
	return out
}

// TasksOf returns tasks in JSON.
func TasksOf(list []schedule.Task) []Task { return listOf(list, TaskOf) }

// Effect is what the handler of a queue has recorded of a task.
type Effect struct {
	Version    int64  `json:"version"`
	Queue      string `json:"queue"`
	Done       string `json:"done,omitempty"        format:"date-time"`
	Attempts   int    `json:"attempts"`
	LeaseUntil string `json:"lease_until,omitempty" format:"date-time"`
}

// EffectsOf returns effects in JSON.
func EffectsOf(list []schedule.Effect) []Effect {
	return listOf(list, func(e schedule.Effect) Effect {
		return Effect{e.Version, e.Queue, Instant(e.DoneAt), e.Attempts, Instant(e.LeaseUntil)}
	})
}

// Record is one of idempotency.
type Record struct {
	Scope     string `json:"scope"`
	Guarded   bool   `json:"guarded"   doc:"a guard left the effect out"`
	Processed string `json:"processed" format:"date-time"`
}

// RecordsOf returns records in JSON.
func RecordsOf(list []idempotency.Record) []Record {
	return listOf(list, func(r idempotency.Record) Record {
		return Record{r.Scope, r.Guarded, shown.Instant(r.ProcessedAt)}
	})
}
