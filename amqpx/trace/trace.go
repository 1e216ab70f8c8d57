// Package trace answers why one message or task has not happened, or that it has: its row, what handlers have
// recorded of it, and where its message is. It changes nothing.
//
// trace.go has the model, take.go reads broker and database, and why.go says in a sentence what they mean,
// without I/O.
package trace

import (
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Trace is what can be known about an id.
type Trace struct {
	ID string
	At time.Time
	// Why is a sentence: what has become of it, or why nothing has.
	Why string
	// Task is its row; nil if there is none. TasksKnown is set if the table was read.
	Task       *schedule.Task
	TasksKnown bool
	Effects    []schedule.Effect
	// Records are those of idempotency in Scopes; RecordsKnown is set if they were read.
	Records      []idempotency.Record
	Scopes       []string
	RecordsKnown bool
	// Lying are the messages with this id in the queues that were searched.
	Lying    []inspect.DeadLetter
	Searched []Searched
	// Waiting are delay queues that are not empty. A message there cannot be looked at without making it late, so
	// any of them may have it.
	Waiting []status.Delay
	// Unsearched are destinations' queues that are not empty. A look there would keep messages from their
	// consumers.
	Unsearched []string
	// Relays are those of the database; nil: unknown.
	Relays []schedule.Relay
	// Destination is the state of the task's destination; nil if unknown.
	Destination *status.Destination
	// Unseen is what could not be seen, and why.
	Unseen []doctor.Unseen
	Notes  []string
}

// Complete reports whether everything could be seen that can be.
func (t Trace) Complete() bool { return len(t.Unseen) == 0 }

// Everywhere reports whether every place was searched where the broker may have the message.
func (t Trace) Everywhere() bool {
	return t.searched() && t.Complete() && len(t.Waiting)+len(t.Unsearched) == 0
}

// searched reports whether every message of the queues in Searched was looked at.
func (t Trace) searched() bool {
	return !slices.ContainsFunc(t.Searched, func(s Searched) bool { return !s.All() })
}

// Found reports whether anything is known of the id.
func (t Trace) Found() bool { return t.Task != nil || len(t.Records)+len(t.Lying) > 0 }

// Searched is a queue that was looked into from its head.
type Searched struct {
	Queue    string `json:"queue"`
	Looked   int    `json:"looked_at"`
	Messages int64  `json:"messages"`
}

// All reports whether every message was looked at.
func (s Searched) All() bool { return int64(s.Looked) >= s.Messages }
