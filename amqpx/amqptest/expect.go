package amqptest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Start starts a server with NewServer and closes it when the test ends.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	s := NewServer(opts)
	t.Cleanup(s.Close)
	return s
}

// Waiting is a message that is delayed until its due time, or that waits in its queue for a consumer.
type Waiting struct {
	Message

	// Queue is the queue to which the message will be delivered, or in which it already is.
	Queue string
	// In is the queue that currently contains the message. It is empty while the delayed-message plugin holds the
	// message.
	In string
	// Due is the time at which the message is due (amqpx.HeaderDue), or zero if it has none.
	Due time.Time
}

// Waiting returns the messages in the virtual host "/" that no consumer has received, ordered by due time. It follows
// TTLs, dead-lettering and bindings to find the queue in which a delayed message will arrive. A message that will
// arrive in several queues is listed once for each.
func (s *Server) Waiting() (all []Waiting) {
	s.do(func() {
		v := s.broker.VHost("/")
		for _, w := range v.Waiting(s.transit()) {
			one := Waiting{Message: s.seen(w.Message), In: w.Queue}
			if ms, ok := one.Headers["rabbitdelay-due"].(int64); ok {
				one.Due = time.UnixMilli(ms)
			}
			for _, one.Queue = range w.Ends {
				all = append(all, one)
			}
		}
	})
	slices.SortStableFunc(all, func(a, b Waiting) int { return a.Due.Compare(b.Due) })
	return all
}

// transit returns a function that reports whether a queue belongs to a delay strategy. It takes the strategies'
// prefixes from the names of the existing delivery exchanges.
func (s *Server) transit() func(queue string) bool {
	// Always include a prefix, so that naming.Reserved is called and recognises the delay queues of other systems too.
	prefixes := []string{"delay"}
	for _, name := range s.broker.VHost("/").ExchangeNames() {
		if p, ok := strings.CutSuffix(name, ".deliver"); ok {
			prefixes = append(prefixes, p)
		}
	}
	return func(queue string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return naming.Reserved(p, queue) })
	}
}

// Want describes an expected message. Only Queue is required. Fields that are zero match any value.
type Want struct {
	Queue string
	ID    string // message id
	Type  string
	// Body is the expected body. If both bodies are JSON, they are compared by value.
	Body string
	// Due is the expected due time. In is the expected due time as a duration from now. Set at most one of them. Both
	// allow a deviation of Within, which is one second by default.
	Due    time.Time
	In     time.Duration
	Within time.Duration
}

// Expect returns the waiting message that matches w. If there is no such message, or more than one, it fails the test
// immediately and shows the waiting messages. Messages that a consumer has received are no longer waiting.
func (s *Server) Expect(t testing.TB, w Want) Waiting {
	t.Helper()
	w.check(t)
	all := s.Waiting()
	var found []Waiting
	for _, m := range all {
		if w.differs(m) == "" {
			found = append(found, m)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	number := "found no message"
	if len(found) > 1 {
		number = fmt.Sprintf("expected one message, found %d", len(found))
	}
	t.Fatalf("%s for %s; waiting messages:%s", number, w, w.list(all))
	return Waiting{}
}

// ExpectNone fails the test if any waiting message matches w, and shows the matching messages.
func (s *Server) ExpectNone(t testing.TB, w Want) {
	t.Helper()
	w.check(t)
	found := slices.DeleteFunc(s.Waiting(), func(m Waiting) bool { return w.differs(m) != "" })
	if len(found) > 0 {
		t.Errorf("expected no message for %s; found:%s", w, w.list(found))
	}
}

// check fails the test immediately if the description is incomplete or contradictory.
func (w Want) check(t testing.TB) {
	t.Helper()
	switch {
	case w.Queue == "":
		t.Fatalf("Want.Queue is not set; expected the queue to which the message is delivered")
	case !w.Due.IsZero() && w.In != 0:
		t.Fatalf("both Want.Due and Want.In are set; set only one")
	}
}

// due returns the expected due time, or zero if any time matches.
func (w Want) due() time.Time {
	if w.Due.IsZero() && w.In != 0 {
		return time.Now().Add(w.In)
	}
	return w.Due
}

// differs returns the name of the first property in which the message differs from w, or "" if the message matches.
func (w Want) differs(m Waiting) string {
	due := w.due()
	switch {
	case w.Queue != m.Queue:
		return "queue"
	case w.ID != "" && w.ID != m.MessageId:
		return "id"
	case w.Type != "" && w.Type != m.Type:
		return "type"
	case w.Body != "" && !sameBody(w.Body, string(m.Body)):
		return "body"
	case !due.IsZero() && m.Due.Sub(due).Abs() > cmp.Or(w.Within, time.Second):
		return "due"
	}
	return ""
}

// sameBody compares two bodies. If both are JSON, it compares their values.
func sameBody(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil {
		return reflect.DeepEqual(x, y)
	}
	return a == b
}

// String describes the expected message for a failure message.
func (w Want) String() string {
	parts := []string{fmt.Sprintf("queue %q", w.Queue)}
	for _, p := range []struct{ what, value string }{{"id", w.ID}, {"type", w.Type}, {"body", w.Body}} {
		if p.value != "" {
			parts = append(parts, fmt.Sprintf("%s %q", p.what, p.value))
		}
	}
	if due := w.due(); !due.IsZero() {
		parts = append(parts, dueText(due))
	}
	return strings.Join(parts, ", ")
}

// maxListed is the maximum number of messages that a test failure lists.
const maxListed = 20

// list formats messages. For messages in w.Queue, it also shows how they differ from w.
func (w Want) list(all []Waiting) string {
	if len(all) == 0 {
		return " none"
	}
	var b strings.Builder
	for i, m := range all {
		if i == maxListed {
			fmt.Fprintf(&b, "\n  and %d more", len(all)-i)
			break
		}
		fmt.Fprintf(&b, "\n  queue %q, id %q, type %q, body %q, %s", m.Queue, m.MessageId, m.Type, clip(m.Body), dueText(m.Due))
		if what := w.differs(m); what != "" && what != "queue" {
			fmt.Fprintf(&b, " (different %s)", what)
		}
	}
	return b.String()
}

func dueText(due time.Time) string {
	if due.IsZero() {
		return "no due time"
	}
	at := due.UTC().Format("2006-01-02T15:04:05.000Z")
	if late := time.Since(due); late > 0 {
		return fmt.Sprintf("due since %s (%s)", topology.FormatDuration(late.Round(time.Millisecond)), at)
	}
	return fmt.Sprintf("due in %s (%s)", topology.FormatDuration(time.Until(due).Round(time.Millisecond)), at)
}

// clip shortens a body for a failure message.
func clip(body []byte) string {
	const most = 200
	if len(body) > most {
		return string(body[:most]) + "…"
	}
	return string(body)
}

// RunUntilIdle polls at intervals that grow from shortLook to longLook or, in a bubble, to longBubbleLook.
const (
	shortLook      = time.Millisecond
	longLook       = time.Second
	longBubbleLook = time.Minute
)

// RunUntilIdle waits until no event is pending, which means that no message waits to become due and all queues with a
// consumer are empty. Messages in queues without a consumer do not count. In a testing/synctest bubble this takes no
// real time, and all goroutines are idle when it returns. Outside a bubble it takes as long as the delays. If the limit
// expires first, RunUntilIdle fails the test immediately and shows what is still pending. With consumers that retry
// forever, or with recurring tasks, the server never becomes idle.
//
// The parameter more has functions that each return the time at which something outside the server is due next, such as
// the next pending task of a store, or the zero time if nothing is due; see docs/testing.md. If something stays
// overdue, such as a task that has no consumer, the server never becomes idle.
func (s *Server) RunUntilIdle(t testing.TB, limit time.Duration, more ...func() time.Time) {
	t.Helper()
	end := time.Now().Add(limit)
	longest := longLook
	if faketime.Inside() {
		longest = longBubbleLook
	}
	pause, before := shortLook, 0
	for {
		if faketime.Inside() {
			synctest.Wait()
		}
		next, left := s.next(more)
		if len(left) == 0 {
			return
		}
		if !time.Now().Before(end) {
			t.Fatalf("not idle after %s: %s", topology.FormatDuration(limit), strings.Join(left, "; "))
		}
		if len(left) != before {
			pause, before = shortLook, len(left)
		}
		wait := pause
		if ahead := time.Until(next); ahead > 0 && faketime.Inside() {
			wait = ahead
		} else {
			pause = min(2*pause, longest)
		}
		<-time.After(min(wait, max(time.Until(end), shortLook)))
	}
}

// next returns what is still pending and the time of the earliest event, if that is known.
func (s *Server) next(more []func() time.Time) (at time.Time, left []string) {
	earliest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, ask := range more {
		if due := ask(); !due.IsZero() {
			earliest(due)
			left = append(left, "something outside the server is "+dueText(due))
		}
	}
	s.do(func() {
		transit := s.transit()
		v := s.broker.VHost("/")
		for _, w := range v.Waiting(transit) {
			if slices.Contains(w.Ends, w.Queue) {
				continue
			}
			left = append(left, fmt.Sprintf("message %q is on its way to %s", w.Message.MessageId, strings.Join(w.Ends, ", ")))
		}
		for _, name := range v.QueueNames() {
			q := v.Queue(name)
			if n := q.Ready() + q.Unacked() + q.Dying() + q.Delayed(); n > 0 && (q.Unacked() > 0 || q.Consumers() > 0) {
				left = append(left, fmt.Sprintf("queue %s has %d messages for its consumers", name, n))
			}
		}
		if event, ok := s.broker.Next(); ok && len(left) > 0 {
			earliest(event.Add(-s.opts.ClockAhead))
		}
	})
	return at, left
}
