package cli

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/lateness"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// received is the result of consume.
type received struct {
	Received int64                `json:"received"`
	Early    int                  `json:"early"`
	Lateness lateness.Percentiles `json:"lateness_ms"`
}

// receivedMessage is the line of one message.
type receivedMessage struct {
	ID       string `json:"id"`
	Due      string `json:"due,omitempty"`
	Received string `json:"received"`
	Lateness *int64 `json:"lateness_ms,omitempty"`
	Attempt  int    `json:"attempt"`
	Body     string `json:"body,omitempty"`
	Binary   string `json:"body_base64,omitempty"` // instead of body when that is not UTF-8
}

var errGoesBack = errors.New("the message goes back to the queue")

// take prints a message and counts it.
func (r *receiver) take(d amqp.Delivery) error {
	at := time.Now()
	if why, ok := d.Headers[amqpx.HeaderUnreadable].(string); ok {
		return fmt.Errorf("message %s cannot be read, and %w: %s; rabbitdelay peek shows it, and rabbitdelay discard --reason %s removes it", d.MessageId, errGoesBack, why, amqpx.ReasonUnreadable)
	}
	if !r.a.Quiet {
		if err := r.print(d, at); err != nil {
			return fmt.Errorf("printing message %s, %w: %w", d.MessageId, errGoesBack, err)
		}
	}
	if due, ok := dueOf(d); ok {
		r.late.Add(at, due)
		r.noteEarly(d.MessageId, due.Sub(at))
	}
	r.bar.Add(1)
	r.received++
	return nil
}

// noteEarly explains the first message that came before it was due by more than
// clocks differ; the summary counts the others.
func (r *receiver) noteEarly(id string, by time.Duration) {
	if by > maxHold && !r.noted {
		r.noted = true
		r.a.Notef("note: message %s came %s before it is due: another program put it into the queue, or this machine's clock is behind the broker's", shown.Line(id), topology.FormatDuration(by.Truncate(time.Millisecond)))
	}
}

// dueOf is the instant at which a message is due, if its headers say so.
func dueOf(d amqp.Delivery) (time.Time, bool) {
	due, ok := integer(d.Headers[amqpx.HeaderDue])
	return time.UnixMilli(due), ok
}

// integer reads a header of any width.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	}
	return 0, false
}

// print writes a message's line to standard output, which is not buffered.
func (r *receiver) print(d amqp.Delivery, at time.Time) error {
	m := receivedMessage{ID: d.MessageId, Received: shown.Instant(at), Attempt: 1}
	if due, ok := dueOf(d); ok {
		late := at.UnixMilli() - due.UnixMilli()
		m.Due, m.Lateness = shown.Instant(due), &late
	}
	if n, ok := integer(d.Headers[amqpx.HeaderAttempt]); ok {
		m.Attempt = int(n)
	}
	m.Body, m.Binary = asjson.Text(d.Body)
	if r.a.JSON {
		return r.a.PrintJSON(m)
	}
	late := ""
	if m.Lateness != nil {
		late = fmt.Sprintf("%+d ms", *m.Lateness)
	}
	attempt := ""
	if m.Attempt > 1 {
		attempt = fmt.Sprintf("attempt %d  ", m.Attempt)
	}
	_, err := fmt.Fprintf(r.a.Stdout, "%s  %8s  %s  %s%q\n", m.Received, late, shown.Line(m.ID), attempt, bodyText(d.Body))
	return err
}

// printSummary prints the last line.
func (r *receiver) printSummary() error {
	p, early := r.late.Summary()
	out := received{Received: r.received, Early: early, Lateness: p}
	if r.a.JSON {
		return r.a.PrintJSON(out)
	}
	_, err := fmt.Fprintf(r.a.Stdout, "%d received, %d early, lateness p50 %d ms, p99 %d ms, max %d ms\n", out.Received, early, p.P50, p.P99, p.Max)
	return err
}
