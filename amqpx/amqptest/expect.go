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

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Start is NewServer for a test, at whose end the server is closed.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	s := NewServer(opts)
	t.Cleanup(s.Close)
	return s
}

// Waiting is a message that waits: for its instant, or in its queue for a consumer.
type Waiting struct {
	Message

	// Queue to which it comes, or in which it is.
	Queue string
	// In is the queue in which it is now; empty while the delayed-message plugin has it.
	In string
	// Due is its due instant (amqpx.HeaderDue), zero if it has none.
	Due time.Time
}

// Waiting returns the messages of the virtual host "/" that no consumer has, by their due
// instants. It follows TTLs, dead letters and bindings to where a delayed message comes; one to
// several queues is there several times.
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

// transit returns what reports whether a queue is one of a delay strategy. Prefixes are those
// that have a delivery exchange.
func (s *Server) transit() func(queue string) bool {
	prefixes := []string{"delay"} // without which other systems' queues would not be known
	for _, name := range s.broker.VHost("/").ExchangeNames() {
		if p, ok := strings.CutSuffix(name, ".deliver"); ok {
			prefixes = append(prefixes, p)
		}
	}
	return func(queue string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return naming.Reserved(p, queue) })
	}
}

// Want describes a message. Only Queue is required: what is zero may be anything.
type Want struct {
	Queue string
	ID    string // message id
	Type  string
	// Body as it is, or as JSON with the same values.
	Body string
	// Due instant, or In, the time until then, each give or take Within, by default a second.
	Due    time.Time
	In     time.Duration
	Within time.Duration
}

// Expect returns the message that waits for w.Queue as described. It ends the test if there is
// none, or more than one, and shows what waits instead. What a consumer has taken waits no more.
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
	number := "no message waits"
	if len(found) > 1 {
		number = fmt.Sprintf("%d messages wait, and not one,", len(found))
	}
	t.Fatalf("%s for %s; these do:%s", number, w, w.list(all))
	return Waiting{}
}

// ExpectNone fails the test if a message waits for w.Queue as described, and shows which.
func (s *Server) ExpectNone(t testing.TB, w Want) {
	t.Helper()
	w.check(t)
	found := slices.DeleteFunc(s.Waiting(), func(m Waiting) bool { return w.differs(m) != "" })
	if len(found) > 0 {
		t.Errorf("expected no message for %s; these wait:%s", w, w.list(found))
	}
}

// check ends the test if nothing could be as described.
func (w Want) check(t testing.TB) {
	t.Helper()
	switch {
	case w.Queue == "":
		t.Fatalf("Want.Queue is not set; expected the queue to which the message comes")
	case !w.Due.IsZero() && w.In != 0:
		t.Fatalf("both Want.Due and Want.In; set one")
	}
}

// due returns the instant that is wanted, zero for any.
func (w Want) due() time.Time {
	if w.Due.IsZero() && w.In != 0 {
		return time.Now().Add(w.In)
	}
	return w.Due
}

// differs returns in what a message is not as described; empty if it is.
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

// sameBody compares two bodies, as JSON if both are.
func sameBody(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil {
		return reflect.DeepEqual(x, y)
	}
	return a == b
}

// String describes what is wanted.
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

// maxListed bounds what a failure shows.
const maxListed = 20

// list describes messages, and in what those for the same queue differ.
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
			fmt.Fprintf(&b, " (another %s)", what)
		}
	}
	return b.String()
}

func dueText(due time.Time) string {
	if due.IsZero() {
		return "no due instant"
	}
	at := due.UTC().Format("2006-01-02T15:04:05.000Z")
	if late := time.Since(due); late > 0 {
		return fmt.Sprintf("due since %s (%s)", topology.FormatDuration(late.Round(time.Millisecond)), at)
	}
	return fmt.Sprintf("due in %s (%s)", topology.FormatDuration(time.Until(due).Round(time.Millisecond)), at)
}

// clip shortens a body for a failure.
func clip(body []byte) string {
	const most = 200
	if len(body) > most {
		return string(body[:most]) + "…"
	}
	return string(body)
}

// Pauses between two looks of RunUntilIdle.
const (
	shortLook      = time.Millisecond
	longLook       = time.Second
	longBubbleLook = time.Minute
)

// RunUntilIdle waits until nothing is left to happen: no message waits for its
// instant, and queues with a consumer are empty. What lies in a queue without a consumer does
// not count. In a testing/synctest bubble that takes no time, and then everything is at rest;
// elsewhere it takes as long as the delays. It ends the test, and shows what is left, when the
// limit is over: with consumers that retry for ever, or recurring tasks, nothing is ever idle.
//
// Each of more says when something else is due next, the zero time for never: the pending tasks
// of a store, see docs/testing.md. What is due and does not happen, such as a task that nobody
// consumes, is never idle.
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

// next returns what is left to happen, and the instant when the first of it will, if that is
// known.
func (s *Server) next(more []func() time.Time) (at time.Time, left []string) {
	earliest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, ask := range more {
		if due := ask(); !due.IsZero() {
			earliest(due)
			left = append(left, "something is "+dueText(due))
		}
	}
	s.do(func() {
		transit := s.transit()
		v := s.broker.VHost("/")
		for _, w := range v.Waiting(transit) {
			if slices.Contains(w.Ends, w.Queue) {
				continue
			}
			left = append(left, fmt.Sprintf("message %q waits for %s", w.Message.MessageId, strings.Join(w.Ends, ", ")))
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
