package schedule

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
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

// statuses lists them in the order of a task's life.
var statuses = []Status{StatusPending, StatusRunning, StatusDone, StatusCancelled, StatusExpired, StatusFailed}

func (s Status) valid() bool {
	return slices.Contains(statuses, s)
}

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
	// ExpiresAfter, counted from DeliverAt by the database's clock, ends the time in
	// which the effect is worth having: a message that is handled later, and a task that was not sent by
	// then, has none. 0 is for ever. Fractions of a millisecond round up.
	ExpiresAfter time.Duration
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

// Cursor is the task's place in the order of List.
func (t Task) Cursor() Cursor { return Cursor{DeliverAt: t.DeliverAt, ID: t.ID} }

// Destination is where the task's message goes.
func (t Task) Destination() topology.Destination {
	return topology.Destination{Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey}
}

// maxName is AMQP's limit of a message id, a routing key and a name.
const maxName = 255

// maxDue is the end of the year 9999, which every client can still write down.
// An instant before minDue, of March 1973, is as past as any; the table refuses
// it from programs that write seconds instead of milliseconds.
const (
	maxDue = 253402300799999
	minDue = 100000000000
)

func (t *Task) validate(maxBody int) error {
	bad := func(field, format string, args ...any) error {
		return &TaskError{ID: t.ID, Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	if err := checkID(t.ID); err != nil {
		return err
	}
	switch {
	case t.Queue == "" && t.Exchange == "":
		return bad("Queue", "no destination; set Queue, or Exchange and RoutingKey")
	case t.Queue != "" && (t.Exchange != "" || t.RoutingKey != ""):
		return bad("Queue", "both Queue (%q) and Exchange or RoutingKey (%q, %q) are set; set one destination", t.Queue, t.Exchange, t.RoutingKey)
	case t.DeliverAt.IsZero():
		return bad("DeliverAt", "is not set; expected an instant, time.Now() for at once")
	case millis(t.DeliverAt) > maxDue:
		return bad("DeliverAt", "%v, expected at most the year 9999", t.DeliverAt)
	case t.ExpiresAfter < 0:
		return bad("ExpiresAfter", "%v, expected 0 for never, or more", t.ExpiresAfter)
	case len(t.Body) > maxBody:
		return bad("Body", "%d bytes, expected at most %d (Config.MaxBody): keep the payload in a table and schedule its key", len(t.Body), maxBody)
	}
	for _, f := range []struct{ name, value string }{
		{"Queue", t.Queue}, {"Exchange", t.Exchange}, {"RoutingKey", t.RoutingKey}, {"ContentType", t.ContentType}, {"Type", t.Type}, {"CorrelationID", t.CorrelationID},
	} {
		if len(f.value) > maxName {
			return bad(f.name, "%d bytes, AMQP allows %d", len(f.value), maxName)
		}
		if !isText(f.value) {
			return bad(f.name, "%q, expected UTF-8 without NUL", f.value)
		}
	}
	for k, v := range t.Headers {
		if k == "" || len(k) > maxName || !isText(k) || !isText(v) {
			return bad("Headers", "%q: expected names of 1 to %d bytes, and UTF-8 without NUL", k, maxName)
		}
	}
	if err := t.sendable(); err != nil {
		return err
	}
	return checkTags(t)
}

func checkID(id string) error {
	switch {
	case id == "":
		return &TaskError{ID: id, Field: "ID", Reason: "is empty"}
	case len(id) > maxName:
		return &TaskError{ID: id, Field: "ID", Reason: fmt.Sprintf("%d bytes, expected at most %d (it is the AMQP message id)", len(id), maxName)}
	case !isText(id):
		return &TaskError{ID: id, Field: "ID", Reason: "expected UTF-8 without NUL"}
	case strings.HasSuffix(id, " "):
		// MySQL would find it equal to the id without the space.
		return &TaskError{ID: id, Field: "ID", Reason: "ends in a space, which some databases ignore"}
	}
	return nil
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// millis is an instant as it is written. It rounds up, so that nothing is early.
func millis(t time.Time) int64 {
	if t.Unix() < minDue/1000 {
		return 0
	}
	return stored(t)
}

// stored is an instant that was read from a row, or is compared with rows. It ends
// after maxDue. By Unix, because an instant that is very far away, such as
// time.Unix(math.MaxInt64, 0), overflows in its milliseconds and in the time.Time
// itself.
func stored(t time.Time) int64 {
	if t.Unix() > maxDue/1000 {
		return maxDue + 1
	}
	if t.Unix() < -maxDue/1000 {
		return -maxDue
	}
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) > 0 {
		ms++
	}
	return ms
}

func encodeHeaders(h map[string]string) (any, error) {
	if len(h) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(h)
	return string(b), err
}

// message is what the relay publishes.
func (c *claimed) message() amqpx.Message {
	m := amqpx.Message{
		ID: c.ID, Queue: c.Queue, Exchange: c.Exchange, RoutingKey: c.RoutingKey,
		DeliverAt: c.DeliverAt, Body: c.Body, ContentType: c.ContentType, Type: c.Type, CorrelationID: c.CorrelationID, Priority: c.Priority,
		Version: c.Version, Created: c.CreatedAt, Attempt: c.Attempts + 1,
	}
	if len(c.Headers) > 0 {
		m.Headers = make(map[string]any, len(c.Headers))
		for k, v := range c.Headers {
			m.Headers[k] = v
		}
	}
	return m
}
