package asjson

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// Task is the JSON form of a task.
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

// TaskOf returns the JSON form of a task.
func TaskOf(t schedule.Task) Task {
	out := Task{
		ID: t.ID, Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey, Status: string(t.Status),
		Due: shown.Instant(t.DueSince()), Version: t.Version, Attempts: t.Attempts, LastError: t.LastError, Sends: t.Sends,
		Sent: Instant(t.SentAt), Created: shown.Instant(t.CreatedAt), Updated: shown.Instant(t.UpdatedAt), Finished: Instant(t.FinishedAt),
		ContentType: t.ContentType, Type: t.Type, CorrelationID: t.CorrelationID, Priority: int(t.Priority),
		ExpiresAfter: Duration(t.ExpiresAfter), UniqueKey: t.UniqueKey, Headers: t.Headers, Tags: t.Tags,
	}
	out.Body, out.BodyBase64 = Text(t.Body)
	return out
}

// TasksOf returns the JSON form of tasks.
func TasksOf(list []schedule.Task) []Task { return listOf(list, TaskOf) }

// Effect is the JSON form of what the handler of a queue has recorded about a task.
type Effect struct {
	Version    int64  `json:"version"`
	Queue      string `json:"queue"`
	Done       string `json:"done,omitempty"        format:"date-time"`
	Attempts   int    `json:"attempts"`
	LeaseUntil string `json:"lease_until,omitempty" format:"date-time"`
}

// EffectsOf returns the JSON form of effects.
func EffectsOf(list []schedule.Effect) []Effect {
	return listOf(list, func(e schedule.Effect) Effect {
		return Effect{e.Version, e.Queue, Instant(e.DoneAt), e.Attempts, Instant(e.LeaseUntil)}
	})
}

// Record is the JSON form of an idempotency record.
type Record struct {
	Scope     string `json:"scope"`
	Guarded   bool   `json:"guarded"   doc:"a guard left the effect out"`
	Processed string `json:"processed" format:"date-time"`
}

// RecordsOf returns the JSON form of records.
func RecordsOf(list []idempotency.Record) []Record {
	return listOf(list, func(r idempotency.Record) Record {
		return Record{r.Scope, r.Guarded, shown.Instant(r.ProcessedAt)}
	})
}

// Content is the destination and the message of a task, as callers specify them.
type Content struct {
	Queue         string            `json:"queue,omitempty"          doc:"the destination: a queue, or exchange and routing_key"`
	Exchange      string            `json:"exchange,omitempty"`
	RoutingKey    string            `json:"routing_key,omitempty"`
	Body          string            `json:"body,omitempty"           doc:"text"`
	BodyBase64    string            `json:"body_base64,omitempty"    doc:"instead of a body that is not UTF-8"`
	ContentType   string            `json:"content_type,omitempty"`
	Type          string            `json:"type,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	Priority      int               `json:"priority,omitempty"       minimum:"0"                                                 maximum:"255"`
	ExpiresAfter  string            `json:"expires_after,omitempty"  doc:"how long after due the effect is worth having"`
	Headers       map[string]string `json:"headers,omitempty"`
	Tags          []string          `json:"tags,omitempty"           maxItems:"20"`
}

// Recurring is the JSON form of a recurring task.
type Recurring struct {
	Name  string `json:"name"`
	State string `json:"state" enum:"active,paused,ended,wrong"`
	RecurringSpec

	Next      []string `json:"next"                 nullable:"false"            doc:"the next due instants, jitter included"`
	Skipped   string   `json:"skipped,omitempty"    format:"date-time"          doc:"the last occurrence that was left out"`
	LastError string   `json:"last_error,omitempty" doc:"what is wrong"`
	Origin    string   `json:"origin,omitempty"     doc:"config: a file has it"`
	Version   int64    `json:"version"`
	Created   string   `json:"created"              format:"date-time"`
	Updated   string   `json:"updated"              format:"date-time"`
}

// RecurringSpec is the part of a recurring task that callers specify.
type RecurringSpec struct {
	Cron         string `json:"cron,omitempty"          doc:"five fields, or six with seconds in front, or @daily; or every"`
	TimeZone     string `json:"time_zone,omitempty"     doc:"of cron, such as Europe/Berlin; default UTC"`
	Every        string `json:"every,omitempty"         doc:"an interval instead of cron, such as 15m"`
	Start        string `json:"start,omitempty"         doc:"the first instant that may be an occurrence"`
	End          string `json:"end,omitempty"           doc:"the first that may not"`
	Jitter       string `json:"jitter,omitempty"`
	Misfire      string `json:"misfire,omitempty"       enum:"skip,once,all"                                                 doc:"default once"`
	MisfireLimit int    `json:"misfire_limit,omitempty" minimum:"0"`
	Overlap      string `json:"overlap,omitempty"       enum:"allow,skip"                                                    doc:"default allow"`

	Content
}

// RecurringOf returns the JSON form of a recurring task, with up to n of its next due times.
func RecurringOf(r schedule.Recurring, now time.Time, n int) Recurring {
	t := r.Task
	spec := RecurringSpec{
		Cron: r.Cron, Every: Duration(r.Every), Start: Instant(r.Start), End: Instant(r.End), Jitter: Duration(r.Jitter),
		Misfire: string(r.Misfire), Overlap: string(r.Overlap),
		Content: Content{
			Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey, ContentType: t.ContentType, Type: t.Type, CorrelationID: t.CorrelationID,
			Priority: int(t.Priority), ExpiresAfter: Duration(t.ExpiresAfter), Headers: t.Headers, Tags: t.Tags,
		},
	}
	spec.Body, spec.BodyBase64 = Text(t.Body)
	if r.Cron != "" {
		spec.TimeZone = r.TimeZone
	}
	if r.Misfire == schedule.MisfireAll {
		spec.MisfireLimit = r.MisfireLimit
	}
	return Recurring{
		Name: r.Name, State: string(r.State(now)), RecurringSpec: spec, Skipped: Instant(r.SkippedAt), LastError: r.LastError, Origin: r.Origin,
		Version: r.Version, Created: shown.Instant(r.CreatedAt), Updated: shown.Instant(r.UpdatedAt),
		Next: listOf(r.Upcoming(now, n), func(o schedule.Occurrence) string { return shown.Instant(o.DeliverAt) }),
	}
}

// Held is the JSON form of a destination whose tasks are paused or limited by a ceiling.
type Held struct {
	Queue       string  `json:"queue,omitempty"`
	Exchange    string  `json:"exchange,omitempty"     doc:"with all its routing keys"`
	PausedAt    string  `json:"paused_at,omitempty"    format:"date-time"                                                                doc:"absent if it is not paused"`
	PausedBy    string  `json:"paused_by,omitempty"`
	PerSecond   float64 `json:"per_second,omitempty"   doc:"the ceiling; absent without one"`
	Burst       int     `json:"burst,omitempty"        doc:"how many may go at once"`
	SpreadUntil string  `json:"spread_until,omitempty" format:"date-time"                                                                doc:"until then what came due in a pause is sent"`
	Waiting     int64   `json:"waiting"                doc:"tasks that are due and wait for this, at most 100000"`
	Busy        bool    `json:"busy"                   doc:"a relay uses the ceiling to the full, so that waiting is no sign of trouble"`
	Note        string  `json:"note,omitempty"         doc:"after a change: nothing has this name, which may be misspelt"`
}

// HeldOf returns the JSON form of a destination's state.
func HeldOf(d schedule.DestinationState) Held {
	return Held{
		Queue: d.Queue, Exchange: d.Exchange, PausedAt: Instant(d.PausedAt), PausedBy: d.PausedBy,
		PerSecond: d.PerSecond, Burst: d.Burst, SpreadUntil: Instant(d.SpreadUntil), Waiting: d.Waiting, Busy: d.Busy,
	}
}
