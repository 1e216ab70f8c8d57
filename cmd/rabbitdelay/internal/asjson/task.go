package asjson

import (
	"encoding/base64"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Content is the destination and the message of a task, as callers specify them.
type Content struct {
	Queue         string            `json:"queue,omitempty"          doc:"The destination queue. Set either queue, or exchange and routing_key."`
	Exchange      string            `json:"exchange,omitempty"`
	RoutingKey    string            `json:"routing_key,omitempty"`
	Body          string            `json:"body,omitempty"           doc:"The body as text."`
	BodyBase64    string            `json:"body_base64,omitempty"    doc:"The body in base64, if it is not UTF-8."`
	ContentType   string            `json:"content_type,omitempty"`
	Type          string            `json:"type,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	Priority      int               `json:"priority,omitempty"       minimum:"0"                                                                 maximum:"255"`
	ExpiresAfter  string            `json:"expires_after,omitempty"  doc:"How long after its due time the task expires."`
	Headers       map[string]string `json:"headers,omitempty"`
	Tags          []string          `json:"tags,omitempty"           maxItems:"20"`
}

func contentOf(t schedule.Task) Content {
	c := Content{
		Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey, ContentType: t.ContentType, Type: t.Type, CorrelationID: t.CorrelationID,
		Priority: int(t.Priority), ExpiresAfter: Duration(t.ExpiresAfter), Headers: t.Headers, Tags: t.Tags,
	}
	c.Body, c.BodyBase64 = Text(t.Body)
	return c
}

// Reader parses the strings in a request, and collects errors by field.
type Reader interface {
	Duration(field, text string) time.Duration
	Fail(field, problem string)
}

// Task returns the task that the content describes. The caller must have checked the priority.
func (c Content) Task(r Reader) schedule.Task {
	t := schedule.Task{
		Queue: c.Queue, Exchange: c.Exchange, RoutingKey: c.RoutingKey, ContentType: c.ContentType, Type: c.Type, CorrelationID: c.CorrelationID,
		Priority: uint8(c.Priority), ExpiresAfter: r.Duration("expires_after", c.ExpiresAfter), Headers: c.Headers, Tags: c.Tags, Body: []byte(c.Body),
	}
	if c.BodyBase64 == "" {
		return t
	}
	if c.Body != "" {
		r.Fail("body_base64", "expected only one of body and body_base64")
	}
	var err error
	if t.Body, err = base64.StdEncoding.DecodeString(c.BodyBase64); err != nil {
		r.Fail("body_base64", "expected base64 (RFC 4648, with padding)")
	}
	return t
}

// Task is the JSON form of a task.
type Task struct {
	ID        string `json:"id"`
	Status    string `json:"status"               enum:"pending,running,done,cancelled,expired,failed"`
	Due       string `json:"due"                  format:"date-time"`
	Version   int64  `json:"version"`
	Attempts  int    `json:"attempts"`
	LastError string `json:"last_error,omitempty"`
	Sends     int    `json:"sends"`
	Sent      string `json:"sent,omitempty"       format:"date-time"`
	Resend    string `json:"resend,omitempty"     format:"date-time"                                   doc:"For a pending task: the earliest time at which it is sent again, if its message is lost."`
	Created   string `json:"created"              format:"date-time"`
	Updated   string `json:"updated"              format:"date-time"`
	Finished  string `json:"finished,omitempty"   format:"date-time"`
	UniqueKey string `json:"unique_key,omitempty" doc:"At most one pending task has this key."`

	Content
}

// TaskOf returns the JSON form of a task.
func TaskOf(t schedule.TaskRow) Task {
	if t.Status != schedule.StatusPending {
		t.ResendAt = time.Time{}
	}
	return Task{
		ID: t.ID, Content: contentOf(t.Task), Status: string(t.Status), Due: shown.Instant(t.DueSince()), Version: t.Version,
		Attempts: t.Attempts, LastError: t.LastError, Sends: t.Sends, Sent: Instant(t.SentAt), Resend: Instant(t.ResendAt),
		Created: shown.Instant(t.CreatedAt), Updated: shown.Instant(t.UpdatedAt), Finished: Instant(t.FinishedAt), UniqueKey: t.UniqueKey,
	}
}

// TasksOf returns the JSON form of tasks.
func TasksOf(list []schedule.TaskRow) []Task { return listOf(list, TaskOf) }

// Effect is the JSON form of what a queue's handler has recorded about a task.
type Effect struct {
	Version    int64  `json:"version"`
	Queue      string `json:"queue"`
	Done       string `json:"done,omitempty"        format:"date-time"`
	Attempts   int    `json:"attempts"`
	LeaseUntil string `json:"lease_until,omitempty" format:"date-time"`
}

// EffectsOf returns the JSON form of effects.
func EffectsOf(list []taskview.Effect) []Effect {
	return listOf(list, func(e taskview.Effect) Effect {
		return Effect{e.Version, e.Queue, Instant(e.DoneAt), e.Attempts, Instant(e.LeaseUntil)}
	})
}

// Record is the JSON form of an idempotency record.
type Record struct {
	Scope     string `json:"scope"`
	Guarded   bool   `json:"guarded"   doc:"True if a guard decided against the effect."`
	Processed string `json:"processed" format:"date-time"`
}

// RecordsOf returns the JSON form of records.
func RecordsOf(list []idempotency.Record) []Record {
	return listOf(list, func(r idempotency.Record) Record {
		return Record{r.Scope, r.Guarded, shown.Instant(r.ProcessedAt)}
	})
}

// Recurring is the JSON form of a recurring task.
type Recurring struct {
	Name  string `json:"name"`
	State string `json:"state" enum:"active,paused,ended,invalid"`
	RecurringSpec

	Next      []string `json:"next"                 nullable:"false"                                     doc:"The next due times, including jitter."`
	Skipped   string   `json:"skipped,omitempty"    format:"date-time"                                   doc:"The last occurrence that was skipped."`
	LastError string   `json:"last_error,omitempty" doc:"Why no tasks can be created."`
	Origin    string   `json:"origin,omitempty"     doc:"config if the recurring task came from a file."`
	Version   int64    `json:"version"`
	Created   string   `json:"created"              format:"date-time"`
	Updated   string   `json:"updated"              format:"date-time"`
}

// RecurringSpec is the part of a recurring task that callers specify.
type RecurringSpec struct {
	Cron         string `json:"cron,omitempty"          doc:"Five fields, six with seconds in front, or a word such as @daily. Set either cron or every."`
	TimeZone     string `json:"time_zone,omitempty"     doc:"The time zone of cron, such as Europe/Berlin. The default is UTC."`
	Every        string `json:"every,omitempty"         doc:"An interval instead of cron, such as 15m."`
	Start        string `json:"start,omitempty"         doc:"No occurrence is before this time."`
	End          string `json:"end,omitempty"           doc:"No occurrence is at or after this time."`
	Jitter       string `json:"jitter,omitempty"`
	Misfire      string `json:"misfire,omitempty"       enum:"skip,once,all"                                                                              doc:"Which missed occurrences still run after an outage. The default is once."`
	MisfireLimit int    `json:"misfire_limit,omitempty" minimum:"0"`
	Overlap      string `json:"overlap,omitempty"       enum:"allow,skip"                                                                                 doc:"Whether an occurrence runs while the previous one is pending. The default is allow."`

	Content
}

// RecurringOf returns the JSON form of a recurring task, with up to n of its next due times.
func RecurringOf(r schedule.Recurring, now time.Time, n int) Recurring {
	spec := RecurringSpec{
		Cron: r.Cron, Every: Duration(r.Every), Start: Instant(r.Start), End: Instant(r.End), Jitter: Duration(r.Jitter),
		Misfire: string(r.Misfire), Overlap: string(r.Overlap), Content: contentOf(r.Task),
	}
	if r.Cron != "" {
		spec.TimeZone = r.TimeZone
	}
	if r.Misfire == schedule.MisfireAll {
		spec.MisfireLimit = r.MisfireLimit
	}
	return Recurring{
		Name: r.Name, State: string(taskview.StateOf(r, now)), RecurringSpec: spec, Skipped: Instant(r.SkippedAt), LastError: r.LastError, Origin: r.Origin,
		Version: r.Version, Created: shown.Instant(r.CreatedAt), Updated: shown.Instant(r.UpdatedAt),
		Next: listOf(taskview.Upcoming(r, now, n), func(o schedule.Occurrence) string { return shown.Instant(o.DueAt) }),
	}
}

// Held is the JSON form of a destination that is paused or has a rate limit.
type Held struct {
	Queue       string  `json:"queue,omitempty"`
	Exchange    string  `json:"exchange,omitempty"     doc:"The exchange, with all its routing keys."`
	PausedAt    string  `json:"paused_at,omitempty"    format:"date-time"                                                                                           doc:"When the destination was paused. Absent if it is not paused."`
	PausedBy    string  `json:"paused_by,omitempty"`
	PerSecond   float64 `json:"per_second,omitempty"   doc:"The rate limit. Absent if there is none."`
	Burst       int     `json:"burst,omitempty"        doc:"How many tasks may be sent together after an idle period."`
	SpreadUntil string  `json:"spread_until,omitempty" format:"date-time"                                                                                           doc:"When the last of the tasks that came due during a pause is sent."`
	Waiting     int64   `json:"waiting"                doc:"The number of due tasks that wait because of the pause or rate limit, counted up to 100000."`
	Busy        bool    `json:"busy"                   doc:"True if relays use the full rate limit, so waiting tasks are to be expected."`
	Note        string  `json:"note,omitempty"         doc:"After a change: says that no task or recurring task has this destination, so its name may be misspelt."`
}

// HeldOf returns the JSON form of a destination's state.
func HeldOf(d schedule.DestinationState) Held {
	return Held{
		Queue: d.Queue, Exchange: d.Exchange, PausedAt: Instant(d.PausedAt), PausedBy: d.PausedBy,
		PerSecond: d.PerSecond, Burst: d.Burst, SpreadUntil: Instant(d.SpreadUntil), Waiting: d.Waiting, Busy: d.Busy,
	}
}
