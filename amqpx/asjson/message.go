package asjson

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/amqpx/trace"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Message is the JSON form of a message in a queue.
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

// MessageOf returns the JSON form of a message.
func MessageOf(position int, m inspect.DeadLetter) Message {
	out := Message{
		Position: position, Queue: m.Queue, ID: m.ID, Due: Instant(m.DueSince()), Attempt: m.Attempt, Snoozes: m.Snoozes, Version: m.Version,
		Reason: m.Reason, Error: m.Error, Attempts: m.Attempts, Destination: m.Destination.String(), Exchange: m.Exchange,
		RoutingKey: m.RoutingKey, Requeued: Instant(m.Requeued), Redelivered: m.Redelivered, ContentType: m.ContentType, Headers: values(m.Headers),
	}
	if m.Reason != "" {
		out.Died = Instant(m.Died)
	}
	out.Body, out.BodyBase64 = Text(m.Body)
	return out
}

// MessagesOf returns the JSON form of messages, with positions counted from 1.
func MessagesOf(list []inspect.DeadLetter) []Message {
	i := 0
	return listOf(list, func(m inspect.DeadLetter) Message {
		i++
		return MessageOf(i, m)
	})
}

// Trace is the JSON form of what is known about a message or task.
type Trace struct {
	ID       string           `json:"id"`
	Why      string           `json:"why"                    doc:"what has become of it, or why nothing has"`
	Found    bool             `json:"found"                  doc:"something is known of the id"`
	Task     *Task            `json:"task,omitempty"`
	Effects  []Effect         `json:"effects"                nullable:"false"`
	Records  []Record         `json:"records"                nullable:"false"`
	Lying    []Message        `json:"lying"                  nullable:"false"`
	Searched []trace.Searched `json:"searched"               nullable:"false"`
	Scopes   []string         `json:"scopes"                 nullable:"false"                                doc:"in which records were looked for"`
	Waiting  []status.Delay   `json:"delay_queues_not_empty" nullable:"false"                                doc:"any of them may have it"`
	Other    []string         `json:"destinations_not_empty" nullable:"false"                                doc:"queues that are not searched, because their consumers would wait; any of them may have it"`
	Unseen   []doctor.Unseen  `json:"unseen"                 nullable:"false"                                doc:"what could not be seen, and why"`
	Notes    []string         `json:"notes"                  nullable:"false"`
}

// TraceOf returns the JSON form of a trace.
func TraceOf(t trace.Trace) Trace {
	out := Trace{
		ID: t.ID, Why: t.Why, Found: t.Found(), Effects: EffectsOf(t.Effects), Records: RecordsOf(t.Records), Lying: MessagesOf(t.Lying),
		Searched: append([]trace.Searched{}, t.Searched...), Scopes: append([]string{}, t.Scopes...), Waiting: append([]status.Delay{}, t.Waiting...),
		Other: append([]string{}, t.Unsearched...), Unseen: append([]doctor.Unseen{}, t.Unseen...), Notes: append([]string{}, t.Notes...),
	}
	if t.Task != nil {
		out.Task = new(TaskOf(*t.Task))
	}
	return out
}
