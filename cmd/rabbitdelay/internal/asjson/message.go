package asjson

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
)

// Message is the JSON form of a message in a queue.
type Message struct {
	Position    int            `json:"position"               doc:"The position in the queue, starting at 1."`
	Queue       string         `json:"queue"`
	ID          string         `json:"id"`
	Due         string         `json:"due,omitempty"          format:"date-time"`
	Attempt     int            `json:"attempt"`
	Snoozes     int            `json:"snoozes,omitempty"`
	Version     int64          `json:"version,omitempty"      doc:"The version of the message's task."`
	Reason      string         `json:"reason,omitempty"       doc:"Why the message is a dead letter, or parked."`
	Error       string         `json:"error,omitempty"        doc:"The last error."`
	Attempts    []string       `json:"attempts,omitempty"     doc:"The failed attempts with their errors."`
	Died        string         `json:"died,omitempty"         format:"date-time"`
	Destination string         `json:"destination,omitempty"  doc:"The message's destination: a queue, or exchange:routing-key."`
	Exchange    string         `json:"exchange,omitempty"`
	RoutingKey  string         `json:"routing_key,omitempty"`
	Requeued    string         `json:"requeued,omitempty"     format:"date-time"`
	Redelivered bool           `json:"redelivered"`
	ContentType string         `json:"content_type,omitempty"`
	Headers     map[string]any `json:"headers,omitempty"      doc:"The headers. Numbers that JSON cannot represent are the strings NaN, +Inf and -Inf."`
	Body        string         `json:"body,omitempty"`
	BodyBase64  string         `json:"body_base64,omitempty"  doc:"The body in base64, if it is not UTF-8."`
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

// Trace is the JSON form of what is known about a message or task. A list is null if it was not read.
type Trace struct {
	ID          string             `json:"id"`
	Why         string             `json:"why"                    doc:"What happened to the message or task, or why nothing has happened yet."`
	Found       bool               `json:"found"                  doc:"True if something is known about the id."`
	TasksRead   bool               `json:"tasks_read"             doc:"True if the task table was read. If it was and task is absent, there is no task with this id."`
	Task        *Task              `json:"task,omitempty"`
	Effects     []Effect           `json:"effects"                nullable:"true"                                                                                     doc:"What handlers have recorded about the task. null if it was not read."`
	Records     []Record           `json:"records"                nullable:"true"                                                                                     doc:"The idempotency records. null if they were not read."`
	DeadLetters []Message          `json:"dead_letters"           nullable:"true"                                                                                     doc:"The message's copies that were found in the queues in searched. null if no queue could be searched."`
	Searched    []trace.Searched   `json:"searched"               nullable:"true"                                                                                     doc:"The dead-letter queues and other queues that were searched. null if none could be searched."`
	Scopes      []string           `json:"scopes"                 nullable:"true"                                                                                     doc:"The scopes that were searched for idempotency records. null if they were not searched."`
	Waiting     []status.Delay     `json:"delay_queues_not_empty" nullable:"true"                                                                                     doc:"Delay queues with messages. Any of them may contain the message. null if the broker was not read."`
	Other       []string           `json:"destinations_not_empty" nullable:"true"                                                                                     doc:"Queues that were not searched, because their consumers would have to wait. Any of them may contain the message. null if the broker was not read."`
	Stuck       []string           `json:"routes_not_empty"       nullable:"true"                                                                                     doc:"Route queues whose messages wait because their exchanges have no route for them. Any of them may contain the message. null without the management API, because only that shows these messages."`
	Unchecked   []doctor.Unchecked `json:"unchecked"              nullable:"false"                                                                                    doc:"What could not be examined, and why."`
	Notes       []string           `json:"notes"                  nullable:"false"`
}

// TraceOf returns the JSON form of a trace.
func TraceOf(t trace.Trace) Trace {
	out := Trace{
		ID: t.ID, Why: t.Why, Found: t.Found(), TasksRead: t.TasksKnown,
		Effects: ifRead(t.Effects, EffectsOf), Records: ifRead(t.Records, RecordsOf), DeadLetters: ifRead(t.DeadLetters, MessagesOf),
		Searched: t.Searched, Scopes: t.Scopes, Waiting: t.Waiting, Other: t.Unsearched,
		Unchecked: append([]doctor.Unchecked{}, t.Unchecked...), Notes: append([]string{}, t.Notes...),
	}
	if t.Stuck != nil {
		out.Stuck = listOf(t.Stuck, func(d status.Destination) string { return d.Queue })
	}
	if t.Task != nil {
		out.Task = new(TaskOf(*t.Task))
	}
	return out
}

// ifRead converts a list with the function convert. It returns nil if the list is nil, which means that it was not
// read.
func ifRead[T, U any](list []T, convert func([]T) []U) []U {
	if list == nil {
		return nil
	}
	return convert(list)
}
