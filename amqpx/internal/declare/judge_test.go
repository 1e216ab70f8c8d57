package declare

import (
	"fmt"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// judge considers the reason for a refusal and earlier failures, not only the reply code, to decide whether the
// refusal is temporary or final.
func TestJudge(t *testing.T) {
	dest := topology.Destination{Queue: "q"}
	refused := &amqp.Error{Code: amqp.AccessRefused, Server: true}
	killed := &amqp.Error{Code: amqp.InternalError, Server: true}
	for _, c := range []struct {
		err    error
		before failure
		passes bool
		alone  bool
	}{
		{refused, failure{}, false, false},
		{&amqp.Error{Code: amqp.ResourceLocked}, failure{}, false, false},
		{&amqp.Error{Code: amqp.PreconditionFailed, Reason: "timeout"}, failure{}, true, false},
		{fmt.Errorf("%w: late", errNoAnswer), failure{}, true, true},
		{killed, failure{}, true, true},
		{killed, failure{ends: maxEnds}, false, true},
	} {
		if got := judge(dest, c.err, c.before); Passes(got.err) != c.passes || got.alone != c.alone {
			t.Errorf("judge of %v: got %+v with Passes %t, want Passes %t and alone %t", c.err, got, Passes(got.err), c.passes, c.alone)
		}
	}
	if !Final(fmt.Errorf("look: %w", errNotApplied)) {
		t.Error("Final(errNotApplied): got false, want true")
	}
}

// Status does not lock the connections. If it did, it would hang in this test.
func TestStatusTakesNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t.Context(), Config{Wire: wire.Config{Log: zap.NewNop()}})
		c.conns.mu.Lock()
		if s := c.Status(); s.State != "" {
			t.Errorf(`Status: got %+v, want State = ""`, s)
		}
	})
}
