package asjson

import "github.com/rabbitdelay/rabbitdelay/amqpx"

// Message is one that lies in a queue.
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

// MessageOf is a message in JSON.
func MessageOf(position int, m amqpx.DeadLetter) Message {
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

// MessagesOf are messages in JSON, with positions from 1.
func MessagesOf(list []amqpx.DeadLetter) []Message {
	i := 0
	return listOf(list, func(m amqpx.DeadLetter) Message {
		i++
		return MessageOf(i, m)
	})
}
