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

// judge decides by the reason for a refusal, and not only by its reply code, whether the refusal is temporary or final.
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
			t.Errorf("%v: got %+v, want Passes(got.err) = %v and got.alone = %v", c.err, got, c.passes, c.alone)
		}
	}
	if !Final(fmt.Errorf("look: %w", errNotApplied)) {
		t.Error("the error of a client that may not declare a layout is not final")
	}
}

// Status returns while another goroutine holds the lock of the connections. Otherwise it would hang
// forever in a bubble.
func TestStatusTakesNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t.Context(), Config{Wire: wire.Config{Log: zap.NewNop()}})
		c.conns.mu.Lock()
		if s := c.Status(); s.State != "" {
			t.Errorf(`got %+v, want State = ""`, s)
		}
	})
}
