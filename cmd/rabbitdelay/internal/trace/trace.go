// Package trace finds out what happened to a message or task, or why it has not happened yet. It reads the task's row,
// the records of handlers, and the queues that may contain the message. It changes nothing.
//
// trace.go defines the model, take.go reads the broker and the database, and why.go explains the result in a sentence,
// without I/O.
package trace

import (
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Trace is everything that could be found out about an id. A list is nil if it was not read, and empty if it was read
// and nothing was found.
type Trace struct {
	ID string
	// At is when the trace was taken, by the database's clock if the tasks were read.
	At time.Time
	// Why is a sentence that says what happened, or why nothing has happened yet.
	Why string
	// Task is the task's row; nil if there is none. TasksKnown is set if the table was read.
	Task       *schedule.TaskRow
	TasksKnown bool
	Effects    []taskview.Effect
	// Records are the idempotency records in Scopes. RecordsKnown is set if they were read. If there is no table of
	// records, Records is empty and RecordsKnown is not set.
	Records      []idempotency.Record
	Scopes       []string
	RecordsKnown bool
	// DeadLetters are the messages with this id that were found in the queues in Searched. Both are nil if the broker
	// could not be searched.
	DeadLetters []inspect.DeadLetter
	Searched    []Searched
	// Waiting are the delay queues that are not empty. Reading a message there would make it late, so these queues are not
	// searched, and any of them may contain the message.
	Waiting []status.Delay
	// Unsearched are the destinations' queues that are not empty. They are not searched, because that would keep
	// messages from their consumers.
	Unsearched []string
	// Stuck are the route queues that are not empty, because their exchanges have no route for the messages. No client
	// can read messages there. It is nil without the management API, because only that shows these queues.
	Stuck []status.Destination
	// Route is the route queue of the task's destination; empty without a task or if the destination is a queue.
	Route string
	// Nowhere is set if the broker is known not to have the message.
	Nowhere bool
	// Relays are the relays of the database; nil if unknown.
	Relays []taskview.Relay
	// Held is the pause or rate limit that holds back the tasks of the task's destination. It is nil if there is none, or
	// if that is unknown.
	Held *schedule.DestinationState
	// Destination is the state of the task's destination; nil if unknown.
	Destination *status.Destination
	// Unchecked lists what could not be read, and why.
	Unchecked []doctor.Unchecked
	Notes     []string
}

// Complete reports whether everything that can be read was read.
func (t Trace) Complete() bool { return len(t.Unchecked) == 0 }

// Everywhere reports whether every place in the broker that may contain the message was searched.
func (t Trace) Everywhere() bool {
	return t.searched() && t.Complete() && len(t.Waiting)+len(t.Unsearched)+len(t.Stuck) == 0
}

// searched reports whether every message of the queues in Searched was read.
func (t Trace) searched() bool {
	return !slices.ContainsFunc(t.Searched, func(s Searched) bool { return !s.All() })
}

// Found reports whether anything is known about the id.
func (t Trace) Found() bool { return t.Task != nil || len(t.Records)+len(t.DeadLetters) > 0 }

// NoRecords reports whether the database is known to have no table of idempotency records.
func (t Trace) NoRecords() bool { return t.Records != nil && !t.RecordsKnown }

// Searched describes a queue that was searched from its head.
type Searched struct {
	Queue    string `json:"queue"`
	Sampled  int    `json:"sampled"`
	Messages int64  `json:"messages"`
	// ReadyOnly means that Messages counts only the ready messages. The queue may have others, which a consumer holds or
	// the broker is dead-lettering.
	ReadyOnly bool `json:"ready_only,omitempty"`
}

// AllReady reports whether every ready message of the queue was read.
func (s Searched) AllReady() bool { return int64(s.Sampled) >= s.Messages }

// All reports whether every message of the queue was read.
func (s Searched) All() bool { return s.AllReady() && !s.ReadyOnly }
