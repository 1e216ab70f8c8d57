package relay

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Check returns an error for a task that no sender and no strategy can send, or that the table
// cannot store, and nil for a valid task.
func Check(t *rows.Task, maxBody int) *rows.FieldError {
	bad := func(field, format string, args ...any) *rows.FieldError {
		return &rows.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	if reason := rows.CheckID(t.ID); reason != "" {
		return bad("ID", "%s", reason)
	}
	if reason := rows.CheckID(t.UniqueKey); t.UniqueKey != "" && reason != "" {
		return bad("UniqueKey", "%s", reason)
	}
	switch {
	case t.Queue == "" && t.Exchange == "":
		return bad("Queue", "no destination; give a queue, or an exchange and a routing key")
	case t.Queue != "" && (t.Exchange != "" || t.RoutingKey != ""):
		return bad("Queue", "both a queue (%q) and an exchange or routing key (%q, %q); give one destination", t.Queue, t.Exchange, t.RoutingKey)
	case t.DeliverAt.IsZero():
		return bad("DeliverAt", "not set; expected a time (the current time to deliver immediately)")
	case units.Instant(t.DeliverAt) != "":
		return bad("DeliverAt", "%s", units.Instant(t.DeliverAt))
	case rows.Millis(t.DeliverAt) > rows.MaxDue:
		return bad("DeliverAt", "%v, expected at most the year 9999", t.DeliverAt)
	case t.ExpiresAfter < 0:
		return bad("ExpiresAfter", "%s, expected 0 for never, or more", topology.FormatDuration(t.ExpiresAfter))
	case units.Duration(t.ExpiresAfter) != "":
		return bad("ExpiresAfter", "%s", units.Duration(t.ExpiresAfter))
	case len(t.Body) > maxBody:
		return bad("Body", "%d bytes, expected at most %d: keep the payload in a table and schedule its key", len(t.Body), maxBody)
	}
	for _, x := range t.Texts() {
		if len(x.Value) > rows.MaxName {
			return bad(x.Field, "%d bytes, AMQP allows %d", len(x.Value), rows.MaxName)
		}
		if !rows.IsText(x.Value) {
			return bad(x.Field, "%q, expected UTF-8 without NUL", x.Value)
		}
	}
	for k, v := range t.Headers {
		if k == "" || len(k) > rows.MaxName || !rows.IsText(k) || !rows.IsText(v) {
			return bad("Headers", "%q: expected names of 1 to %d bytes, and UTF-8 without NUL", k, rows.MaxName)
		}
		if !header.Kept(k) {
			return bad("Headers", "%q: the broker or rabbitdelay interprets a header with this name, so a task cannot set it; use another name", k)
		}
	}
	m := undated(t)
	err := m.Check()
	if err == nil {
		err = checkKey(destinationOf(t))
	}
	if err != nil {
		return refused(t, err)
	}
	return checkTags(t.Tags)
}

// Limits of a task's tags: their number, and the length of one in bytes.
const (
	maxTags = 20
	maxTag  = 100
)

func checkTags(tags []string) *rows.FieldError {
	if len(tags) > maxTags {
		return &rows.FieldError{Field: "Tags", Reason: fmt.Sprintf("%d tags, expected at most %d", len(tags), maxTags)}
	}
	seen := make(map[string]bool, len(tags))
	for _, tag := range tags {
		switch {
		case tag == "" || len(tag) > maxTag || !rows.IsText(tag) || strings.HasSuffix(tag, " "):
			return &rows.FieldError{Field: "Tags", Reason: fmt.Sprintf("%q, expected 1 to %d bytes of UTF-8 without NUL that do not end in a space", tag, maxTag)}
		case seen[tag]:
			return &rows.FieldError{Field: "Tags", Reason: fmt.Sprintf("%q is listed twice", tag)}
		}
		seen[tag] = true
	}
	return nil
}

// checker is a Sender that can check a message without sending it. lister is a Sender that has a list of allowed
// destinations. *amqpx.Client implements both.
type (
	checker interface{ Check(m amqpx.Message) error }
	lister  interface {
		Listed(dest topology.Destination) error
	}
)

var _ interface {
	checker
	lister
} = (*amqpx.Client)(nil)

// Listed returns an error if check or the sender rejects a destination regardless of the message. Both check and sender
// may be nil.
func Listed(sender Sender, check func(topology.Destination) error, dest topology.Destination) error {
	if check != nil {
		if err := check(dest); err != nil {
			return err
		}
	}
	if s, ok := sender.(lister); ok {
		return s.Listed(dest)
	}
	return nil
}

// CheckFor returns an error if Listed rejects a task's destination, or if the sender would reject its message, for
// example because its strategy has no route for the destination.
func CheckFor(sender Sender, check func(topology.Destination) error, t *rows.Task) *rows.FieldError {
	if err := Listed(sender, check, destinationOf(t)); err != nil {
		return refused(t, err)
	}
	if s, ok := sender.(checker); ok {
		if err := s.Check(undated(t)); err != nil {
			return refused(t, err)
		}
	}
	return nil
}

// undated returns the task's message without DeliverAt. A check of the destination must not fail because the task is
// due later than a message can be delayed.
func undated(t *rows.Task) amqpx.Message {
	m := Message(t)
	m.DeliverAt = time.Time{}
	return m
}

func destinationOf(t *rows.Task) topology.Destination {
	return topology.Destination{Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey}
}

func refused(t *rows.Task, err error) *rows.FieldError {
	if me, ok := errors.AsType[*amqpx.MessageError](err); ok {
		return &rows.FieldError{Field: me.Field, Reason: me.Reason}
	}
	if t.Exchange != "" {
		return &rows.FieldError{Field: "Exchange", Reason: err.Error()}
	}
	return &rows.FieldError{Field: "Queue", Reason: err.Error()}
}

// leastOverhead is the smallest number of bytes that a strategy puts before the destination in a
// routing key: its tag and the separator.
const leastOverhead = len("plugin.")

func checkKey(d topology.Destination) error {
	if key := d.Key(topology.DefaultPrefix); len(key)+leastOverhead > topology.MaxRoutingKey {
		return fmt.Errorf("%q takes %d bytes of a routing key, expected at most %d", key, len(key), topology.MaxRoutingKey-leastOverhead)
	}
	return nil
}
