package amqpx

import (
	"context"
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// What follows each outcome, read as a story: the outcomes of one message's
// tries, and what is done after the last of them.
func TestNext(t *testing.T) {
	closed := func(code int, reason string) error {
		return &amqp.Error{Code: code, Reason: reason, Server: true, Recover: true}
	}
	noAccess := closed(amqp.AccessRefused, "ACCESS_REFUSED - write access to exchange 'delay.bucket.1m' in vhost '/' refused for user 'shop'")
	noExchange := closed(amqp.NotFound, "NOT_FOUND - no exchange 'delay.bucket.1m' in vhost '/'")
	odd := closed(amqp.PreconditionFailed, "PRECONDITION_FAILED - odd")
	var (
		ok        = outcome{kind: confirmed}
		never     = outcome{kind: impossible, err: ErrClosed}
		unsent    = outcome{kind: unwritten, err: errors.New("no channel")}
		full      = outcome{kind: nacked, err: ErrNacked}
		back      = outcome{kind: returned, err: ErrUnroutable}
		forbidden = outcome{kind: refused, err: noAccess, code: amqp.AccessRefused}
		banned    = outcome{kind: refused, err: noAccess, code: amqp.AccessRefused, stands: true}
		missing   = outcome{kind: refused, err: noExchange, code: amqp.NotFound}
		culprit   = outcome{kind: refused, err: odd, code: amqp.PreconditionFailed, alone: true}
		bystander = outcome{kind: disturbed, err: noAccess}
		doubtful  = outcome{kind: disturbed, err: odd, suspect: true, doubt: "PRECONDITION_FAILED - odd"}
		other     = outcome{kind: disturbed, err: odd, suspect: true, doubt: "PRECONDITION_FAILED - other"}
		revoked   = outcome{kind: disturbed, err: noAccess, suspect: true}
		cut       = outcome{kind: lost, err: errors.New("EOF")}
		killed    = outcome{kind: lost, err: errors.New("INTERNAL_ERROR"), suspect: true}
		killed1   = outcome{kind: lost, err: errors.New("INTERNAL_ERROR"), suspect: true, alone: true}
		late      = outcome{kind: expired, err: context.DeadlineExceeded}
	)
	const (
		again, final, done = "again", "final", "done"
		sure, maybe        = false, true // may it have been taken?
		shared, alone      = false, true
	)
	for _, c := range []struct {
		story   string
		tries   []outcome
		then    string
		unknown bool
		alone   bool
		says    string
	}{
		{"confirmed", []outcome{ok}, done, sure, shared, ""},
		{"confirmed after all", []outcome{cut, full, back, ok}, done, maybe, shared, ""},
		{"the client is closed", []outcome{never}, final, sure, shared, "closed"},
		{"not written", []outcome{unsent}, again, sure, shared, ""},
		{"not written, and then it is too late", []outcome{unsent, never}, final, sure, shared, "no channel"},
		{"a full queue", []outcome{full, full, full, full, full}, again, sure, shared, ""},
		{"a full queue until the end", []outcome{full, never}, final, sure, shared, "refused by the broker"},
		{"a queue is missing", []outcome{back}, "declare", sure, shared, ""},
		{"a queue stays missing", []outcome{back, back, back}, final, sure, shared, "unroutable"},
		{"an exchange is missing", []outcome{missing}, "declare", sure, shared, ""},
		{"an exchange stays missing", []outcome{missing, back, missing}, final, sure, shared, "no exchange"},
		{"no access, for now", []outcome{forbidden}, "later", sure, alone, ""},
		{"no access, later neither", []outcome{forbidden, forbidden}, final, sure, alone, "write access"},
		{"no access, as is known", []outcome{banned}, final, sure, shared, "write access"},
		{"access was revoked meanwhile", []outcome{revoked, banned}, final, maybe, alone, "write access"},
		{"another had no access", []outcome{bystander}, again, maybe, shared, ""},
		{"refused, and nobody says who", []outcome{doubtful}, again, maybe, alone, ""},
		{"refused, and it was this one", []outcome{doubtful, culprit}, final, sure, alone, "odd"},
		{"refused, and it was this one, after another's", []outcome{other, doubtful, culprit}, final, maybe, alone, "odd"},
		{"refused, after the line was cut", []outcome{cut, culprit}, final, maybe, shared, "odd"},
		{"refused, and it was another", []outcome{doubtful, ok}, done, maybe, alone, ""},
		{"the line was cut", []outcome{cut}, again, maybe, shared, ""},
		{"the broker ended the connection", []outcome{killed}, again, maybe, alone, ""},
		{"because of this message", []outcome{killed, killed1, killed1}, final, maybe, alone, "because of this message"},
		{"too late", []outcome{full, late}, final, maybe, shared, "refused by the broker"},
	} {
		t.Run(c.story, func(t *testing.T) {
			var m tries
			var s step
			for i, o := range c.tries {
				if i > 0 && (s.done || s.final != nil) {
					t.Fatalf("over before try %d: %+v", i+1, s)
				}
				m, s = m.next(o)
			}
			then := again
			switch {
			case s.done:
				then = done
			case s.final != nil:
				then = final
			case s.declare:
				then = "declare"
			case s.pause > 0:
				then = "later"
			}
			if then != c.then || m.alone != c.alone {
				t.Errorf("then %s (alone: %t); want %s (%t)", then, m.alone, c.then, c.alone)
			}
			if p := (&prepared{tries: m}); p.failed(s.final).Unknown != c.unknown {
				t.Errorf("unknown: %t", !c.unknown)
			}
			if c.says != "" && (s.final == nil || !strings.Contains(s.final.Error(), c.says)) {
				t.Errorf("got %v; want it to say %q", s.final, c.says)
			}
		})
	}
}

// A dead letter goes to a queue that cannot be declared again with the topology:
// its first return is final.
func TestDeadLettersReturnIsFinal(t *testing.T) {
	c := offline(t, nil)
	p, err := c.prepare(&Message{Queue: "q"}, straightTo(topology.Destination{Queue: "q.dead"}), c.declared)
	if err != nil {
		t.Fatal(err)
	}
	if _, s := p.tries.next(outcome{kind: returned, err: ErrUnroutable}); s.final == nil {
		t.Errorf("got %+v", s)
	}
}
