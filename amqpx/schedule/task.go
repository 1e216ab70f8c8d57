package schedule

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Status is the stage that a task has reached, such as pending or done.
type Status string

// The statuses of a task. A task is pending, or running while LeaseHandler works on it, until it is done, cancelled,
// expired or failed. Reschedule and RunNow keep it pending. Revive makes a failed task pending again.
const (
	StatusPending   Status = "pending"
	StatusRunning   Status = "running"   // LeaseHandler is working on it; pending again if the lease ends without an outcome
	StatusDone      Status = "done"      // its effect was committed
	StatusCancelled Status = "cancelled" // Cancel was committed before the effect
	StatusExpired   Status = "expired"   // it was too late for the effect, see Task.ExpiresAfter
	StatusFailed    Status = "failed"    // retries exhausted, rejected, or not sendable; LastError says why
)

// Task is what the caller passes to Schedule: a message, its destination, and when it is due. TaskRow adds what the
// database records about a task.
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
	// Body is the payload, at most Config.MaxBody bytes.
	Body        []byte
	ContentType string
	// Type, CorrelationID and Priority are the message properties of the same names. In a quorum
	// delay queue, RabbitMQ 4.0 to 4.2 supports priorities up to 4.
	Type          string
	CorrelationID string
	Priority      uint8
	// ExpiresAfter is how long after DeliverAt, by the database's clock, the task may still take effect. A task that is
	// not sent or not handled by then expires. The default 0 means that it never expires. Fractions of a millisecond
	// are rounded up.
	ExpiresAfter time.Duration
	// UniqueKey, for ScheduleUnique, identifies the work that the task does. At most one pending task in the whole
	// table has the same key, whatever the destinations are. It consists of 1 to 255 bytes of UTF-8 without NUL, and
	// does not end in a space. It is not part of the message.
	UniqueKey string
	// Replace makes Schedule overwrite an existing task with the same ID, whatever its status, instead of returning
	// *ExistsError. The new task continues the version numbers of the old one, so that the old task's messages have no
	// effect.
	//
	// A handler may replace its own task in its transaction if it passes on the context that it was given. The
	// handler's effect is then kept, and the replacement is a new task that runs later. ScheduleUnique rejects a task
	// with Replace. Replace is not stored.
	Replace bool
	// Headers are the message's headers. A name that the broker or rabbitdelay interprets is an error.
	Headers map[string]string
	// Tags are names by which a Filter can find the task, such as the tenant or the campaign. There
	// may be up to 20, each of 1 to 100 bytes of UTF-8 that do not end in a space. They are not
	// part of the message.
	Tags []string
}

// TaskRow is a row in rabbitdelay_tasks: a task, and what this package records about it.
type TaskRow struct {
	Task

	// Version starts at 1 and increases with every change of the task. A message carries the version for which it was
	// sent, and has an effect only while the row has the same version.
	Version   int64
	Status    Status
	Attempts  int       // failed attempts of the handler for this version
	LastError string    // last error of the handler or of sending; empty if there was none
	Sends     int       // number of confirmed publishes of this version
	SentAt    time.Time // when the last of them was confirmed; zero if the task is only in the table
	// ResendAt is the earliest time at which the relay sends the task again if it finds that the message is lost. It is
	// zero if the task is only in the table.
	ResendAt   time.Time
	CreatedAt  time.Time
	UpdatedAt  time.Time
	FinishedAt time.Time // zero while pending or running
}

// Destination returns the destination of the task's message.
func (t Task) Destination() topology.Destination {
	return topology.Destination{Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey}
}

// DueSince returns the time at which the task is or was due. That is DeliverAt or, if DeliverAt is the Unix epoch,
// which means immediately, the time at which the task was written. Use it to show the due time and to compute lateness.
func (t TaskRow) DueSince() time.Time {
	if t.DeliverAt.UnixMilli() == 0 {
		return t.CreatedAt
	}
	return t.DeliverAt
}

func (t *Task) row() *rows.Task { return &rows.Task{Content: rows.Content(*t)} }

func taskOf(r *rows.Task) TaskRow {
	return TaskRow{
		Task:    Task(r.Content),
		Version: r.Version, Status: Status(r.Status), Attempts: r.Attempts, LastError: r.LastError, Sends: r.Sends,
		SentAt: r.SentAt, ResendAt: r.ResendAt, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, FinishedAt: r.FinishedAt,
	}
}
