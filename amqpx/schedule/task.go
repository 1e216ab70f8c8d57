package schedule

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Status is where a task is in its life.
type Status string

// A task is pending until it is done, cancelled, expired or failed. Reschedule and
// FireNow keep it pending; Revive makes a failed one pending again.
const (
	StatusPending   Status = "pending"
	StatusRunning   Status = "running"   // LeaseHandler's work is on its way; pending again if its lease ends
	StatusDone      Status = "done"      // its effect committed
	StatusCancelled Status = "cancelled" // Cancel committed first
	StatusExpired   Status = "expired"   // its time was over before its effect, see Task.ExpiresAfter
	StatusFailed    Status = "failed"    // retries exhausted, rejected, or it could not be sent; LastError says
)

// Task is one row of rabbitdelay_tasks. The first part is the caller's; the
// second is kept by this package, and ignored by Schedule.
type Task struct {
	// ID identifies the task, and is the message id on the wire: 1 to 255 bytes
	// of UTF-8 without NUL that do not end in a space.
	ID string
	// Queue is the destination queue.
	Queue string
	// Exchange with RoutingKey is the other form of a destination.
	Exchange   string
	RoutingKey string
	// DeliverAt is the due instant, however far away; an instant in the past
	// means at once. Fractions of a millisecond round up. Required.
	DeliverAt time.Time
	// Body is the payload, at most Config.MaxBody.
	Body        []byte
	ContentType string
	// Type and CorrelationID are the message's properties of that name, Priority
	// its priority; RabbitMQ 4.0 to 4.2 takes up to 4 in a quorum delay queue.
	Type          string
	CorrelationID string
	Priority      uint8
	// ExpiresAfter, counted from DeliverAt by the database's clock, is how long the
	// effect is worth having: a message that is handled later, and a task that was
	// not sent by then, has none. 0 is for ever. Fractions of a millisecond round up.
	ExpiresAfter time.Duration
	// UniqueKey, for ScheduleUnique, says what the task is about; at most one pending task
	// has it. 1 to 255 bytes of UTF-8 without NUL that do not end in a space. Keys are
	// those of the whole table, whatever the destination. They are not part of the message.
	UniqueKey string
	// Headers are the message's headers.
	Headers map[string]string
	// Tags are names by which Filter finds the task, such as the tenant or the
	// campaign: up to 20, each of 1 to 100 bytes of UTF-8 that do not end in a
	// space. They are not part of the message.
	Tags []string

	// Version counts the task's changes from 1. A message carries the version
	// it was sent for, and has an effect only while the row has the same
	// version.
	Version    int64
	Status     Status
	Attempts   int       // failed attempts of the handler, of this version
	LastError  string    // of the handler, or of sending; empty for none
	Sends      int       // confirmed publishes of this version
	SentAt     time.Time // the last of them; zero: it waits in the table only
	CreatedAt  time.Time
	UpdatedAt  time.Time
	FinishedAt time.Time // zero while pending
}

// Destination is where the task's message goes.
func (t Task) Destination() topology.Destination {
	return topology.Destination{Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey}
}

// DueSince is DeliverAt, or when the task was written if it is due at 0, which means immediately: the
// instant to show, and to count lateness from.
func (t Task) DueSince() time.Time {
	if t.DeliverAt.UnixMilli() == 0 {
		return t.CreatedAt
	}
	return t.DeliverAt
}

func (t *Task) row() *rows.Task {
	return &rows.Task{
		ID: t.ID, Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey, DeliverAt: t.DeliverAt,
		Body: t.Body, ContentType: t.ContentType, Type: t.Type, CorrelationID: t.CorrelationID, Priority: t.Priority,
		ExpiresAfter: t.ExpiresAfter, UniqueKey: t.UniqueKey, Headers: t.Headers, Tags: t.Tags,
	}
}

func taskOf(r *rows.Task) Task {
	return Task{
		ID: r.ID, Queue: r.Queue, Exchange: r.Exchange, RoutingKey: r.RoutingKey, DeliverAt: r.DeliverAt,
		Body: r.Body, ContentType: r.ContentType, Type: r.Type, CorrelationID: r.CorrelationID, Priority: r.Priority,
		ExpiresAfter: r.ExpiresAfter, UniqueKey: r.UniqueKey, Headers: r.Headers, Tags: r.Tags,
		Version: r.Version, Status: Status(r.Status), Attempts: r.Attempts, LastError: r.LastError, Sends: r.Sends,
		SentAt: r.SentAt, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, FinishedAt: r.FinishedAt,
	}
}
