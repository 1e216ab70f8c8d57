package asjson

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Content is the destination and the message of a task, as a caller gives them.
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

func contentOf(t schedule.Task) Content {
	out := Content{
		Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey, ContentType: t.ContentType, Type: t.Type, CorrelationID: t.CorrelationID,
		Priority: int(t.Priority), ExpiresAfter: Duration(t.ExpiresAfter), Headers: t.Headers, Tags: t.Tags,
	}
	out.Body, out.BodyBase64 = Text(t.Body)
	return out
}

// Message is a message in a queue.
type Message struct {
	Position    int            `json:"position"               doc:"from the queue's head, which is 1"`
	Queue       string         `json:"queue"`
	ID          string         `json:"id"`
	Due         string         `json:"due,omitempty"          format:"date-time"`
	Attempt     int            `json:"attempt"`
	Snoozes     int            `json:"snoozes,omitempty"`
	Version     int64          `json:"version,omitempty"      doc:"of its task"`
	Reason      string         `json:"reason,omitempty"       doc:"why it is a dead letter, or parked"`
	Error       string         `json:"error,omitempty"        doc:"the last one"`
	Attempts    []string       `json:"attempts,omitempty"     doc:"those that failed, with their errors"`
	Died        string         `json:"died,omitempty"         format:"date-time"`
	Destination string         `json:"destination,omitempty"  doc:"where it belongs: a queue, or exchange:routing-key"`
	Exchange    string         `json:"exchange,omitempty"`
	RoutingKey  string         `json:"routing_key,omitempty"`
	Requeued    string         `json:"requeued,omitempty"     format:"date-time"`
	Redelivered bool           `json:"redelivered"`
	ContentType string         `json:"content_type,omitempty"`
	Headers     map[string]any `json:"headers,omitempty"      doc:"numbers that JSON does not have stand as NaN, +Inf and -Inf"`
	Body        string         `json:"body,omitempty"`
	BodyBase64  string         `json:"body_base64,omitempty"  doc:"instead of body when that is not UTF-8"`
}

// MessageOf returns a message in JSON.
func MessageOf(position int, m inspect.DeadLetter) Message {
	out := Message{
		Position: position, Queue: m.Queue, ID: m.ID, Due: Instant(m.DueAt), Attempt: m.Attempt, Snoozes: m.Snoozes, Version: m.Version,
		Reason: m.Reason, Error: m.Error, Attempts: m.Attempts, Destination: m.Destination.String(), Exchange: m.Exchange,
		RoutingKey: m.RoutingKey, Requeued: Instant(m.Requeued), Redelivered: m.Redelivered, ContentType: m.ContentType, Headers: values(m.Headers),
	}
	if m.Reason != "" {
		out.Died = Instant(m.Died)
	}
	out.Body, out.BodyBase64 = Text(m.Body)
	return out
}

// MessagesOf returns messages in JSON, with positions from 1.
func MessagesOf(list []inspect.DeadLetter) []Message {
	i := 0
	return listOf(list, func(m inspect.DeadLetter) Message {
		i++
		return MessageOf(i, m)
	})
}
