package schedule

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Status is the status of a task.
type Status string

// The statuses of a task. A task is pending until it is done, cancelled, expired or failed. Reschedule
// and FireNow keep it pending. Revive makes a failed task pending again.
const (
	StatusPending   Status = "pending"
	StatusRunning   Status = "running"   // LeaseHandler is working on it; pending again if the lease ends
	StatusDone      Status = "done"      // its effect was committed
	StatusCancelled Status = "cancelled" // Cancel was committed before the effect
	StatusExpired   Status = "expired"   // it was too late for its effect, see Task.ExpiresAfter
	StatusFailed    Status = "failed"    // retries exhausted, rejected, or not sendable; LastError says why
)

// Task is one row of rabbitdelay_tasks. The caller sets the fields of the first part. The fields of the
// second part are maintained by this package, and Schedule ignores them.
type Task struct {
	// ID identifies the task, and is the message id on the wire: 1 to 255 bytes
	// of UTF-8 without NUL that do not end in a space.
	ID string
	// Queue is the destination queue.
	Queue string
	// Exchange and RoutingKey are the destination if Queue is empty.
	Exchange   string
	RoutingKey string
	// DeliverAt is the due time, at most in the year 9999. A time in the past means immediately.
	// Fractions of a millisecond are rounded up. Required.
	DeliverAt time.Time
	// Body is the payload, at most Config.MaxBody.
	Body        []byte
	ContentType string
	// Type, CorrelationID and Priority are the message properties of the same names. In a quorum
	// delay queue, RabbitMQ 4.0 to 4.2 supports priorities up to 4.
	Type          string
	CorrelationID string
	Priority      uint8
	// ExpiresAfter is how long after DeliverAt, by the database's clock, the task may still have its
	// effect. A task that is not sent or not handled by then expires. The default 0 means that it
	// never expires. Fractions of a millisecond are rounded up.
	ExpiresAfter time.Duration
	// UniqueKey, for ScheduleUnique, identifies what the task is about. At most one pending task of
	// the whole table has it, whatever the destination. It consists of 1 to 255 bytes of UTF-8 without
	// NUL, and does not end in a space. It is not part of the message.
	UniqueKey string
	// Headers are the message's headers.
	Headers map[string]string
	// Tags are names by which a Filter can find the task, such as the tenant or the campaign. There
	// may be up to 20, each of 1 to 100 bytes of UTF-8 that do not end in a space. They are not
	// part of the message.
	Tags []string

	// Version begins at 1 and is raised by every change of the task. A message carries the version
	// for which it was sent, and has an effect only while the row has the same version.
	Version    int64
	Status     Status
	Attempts   int       // failed attempts of the handler for this version
	LastError  string    // last error of the handler or of sending; empty if there was none
	Sends      int       // confirmed publishes of this version
	SentAt     time.Time // when the last of them was confirmed; zero if the task is in the table only
	CreatedAt  time.Time
	UpdatedAt  time.Time
	FinishedAt time.Time // zero while pending
}

// Destination returns the destination of the task's message.
func (t Task) Destination() topology.Destination {
	return topology.Destination{Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey}
}

// DueSince returns the time since which the task is due: DeliverAt, or when the task was written if
// DeliverAt is 0, which means immediately. Use it to show the due time and to compute lateness.
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
