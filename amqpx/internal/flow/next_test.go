package flow

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// told returns the outcomes by their names in testdata/next.txt.
func told() map[string]Outcome {
	closed := func(code int, reason string) error {
		return &amqp.Error{Code: code, Reason: reason, Server: true, Recover: true}
	}
	noAccess := closed(amqp.AccessRefused, "ACCESS_REFUSED - write access to exchange 'delay.bucket.1m' in vhost '/' refused for user 'shop'")
	noExchange := closed(amqp.NotFound, "NOT_FOUND - no exchange 'delay.bucket.1m' in vhost '/'")
	odd := closed(amqp.PreconditionFailed, "PRECONDITION_FAILED - odd")
	return map[string]Outcome{
		"ok":        {Kind: Confirmed},
		"never":     {Kind: Impossible, Err: errors.New("client is closed")},
		"unsent":    {Kind: Unwritten, Err: errors.New("no channel")},
		"full":      {Kind: Nacked, Err: ErrNacked},
		"back":      {Kind: Returned, Err: ErrUnroutable},
		"forbidden": {Kind: Refused, Err: noAccess, Code: amqp.AccessRefused},
		"banned":    {Kind: Refused, Err: noAccess, Code: amqp.AccessRefused, stands: true},
		"missing":   {Kind: Refused, Err: noExchange, Code: amqp.NotFound},
		"culprit":   {Kind: Refused, Err: odd, Code: amqp.PreconditionFailed, alone: true},
		"bystander": {Kind: Disturbed, Err: noAccess},
		"doubtful":  {Kind: Disturbed, Err: odd, suspect: true, doubt: "PRECONDITION_FAILED - odd"},
		"other":     {Kind: Disturbed, Err: odd, suspect: true, doubt: "PRECONDITION_FAILED - other"},
		"revoked":   {Kind: Disturbed, Err: noAccess, suspect: true},
		"cut":       {Kind: Lost, Err: errors.New("EOF")},
		"killed":    {Kind: Lost, Err: errors.New("INTERNAL_ERROR"), suspect: true},
		"killed1":   {Kind: Lost, Err: errors.New("INTERNAL_ERROR"), suspect: true, alone: true},
		"late":      {Kind: Expired, Err: context.DeadlineExceeded},
	}
}

func (s Step) String() string {
	switch {
	case s.Do == Publish && s.Pause > 0:
		return "pause"
	case s.Do == Publish:
		return "again"
	}
	return map[Act]string{Declare: "declare", Finish: "finish", GiveUp: "give up"}[s.Do]
}

// Each line of testdata/next.txt gives a sequence of outcomes and the step that must follow it.
func TestNext(t *testing.T) {
	f, err := os.Open("testdata/next.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	outcomes := told()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		c := strings.Split(lines.Text()+" ", "|")
		for i := range c {
			c[i] = strings.TrimSpace(c[i])
		}
		story, tries, then, taken, channel, says := c[0], c[1], c[2], c[3], c[4], c[5]
		t.Run(story, func(t *testing.T) {
			var m Tries
			var s Step
			for i, name := range strings.Fields(tries) {
				o, ok := outcomes[name]
				if !ok || i > 0 && (s.Do == Finish || s.Do == GiveUp) {
					t.Fatalf("try %d: got outcome %s after the step %v, want a known outcome before the last step", i+1, name, s)
				}
				m, s = m.Next(o)
			}
			if s.String() != then || m.Alone != (channel == "alone") {
				t.Errorf("next step: got %s (alone: %t), want %s (%s)", s, m.Alone, then, channel)
			}
			if m.MaybeTaken() != (taken == "maybe") {
				t.Errorf("MaybeTaken: got %t, want %t", m.MaybeTaken(), taken == "maybe")
			}
			if says != "" && (s.Err == nil || !strings.Contains(s.Err.Error(), says)) {
				t.Errorf("next step: got the error %v, want it to contain %q", s.Err, says)
			}
		})
	}
}
