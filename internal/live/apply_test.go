package live

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// blockedConn is a connection on which opening a channel blocks until it is released.
type blockedConn struct{ release chan struct{} }

func (c blockedConn) Channel() (*amqp.Channel, error) {
	<-c.release
	return nil, amqp.ErrClosed
}

func TestApplyEndsWithTheContext(t *testing.T) {
	conn := blockedConn{make(chan struct{})}
	defer close(conn.release)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := (Broker{Conn: conn}).Apply(ctx, topology.DeliveryTopology("p"), ApplyOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Apply with a blocked connection: got %v, want %v", err, context.DeadlineExceeded)
	}
}

type deadConn struct{}

func (deadConn) Channel() (*amqp.Channel, error) { return nil, amqp.ErrClosed }

func TestApplyOnADeadConnectionTriesNothing(t *testing.T) {
	top := topology.DeliveryTopology("p")
	report, err := Broker{Conn: deadConn{}}.Apply(t.Context(), top, ApplyOptions{})
	if !errors.Is(err, amqp.ErrClosed) || report.Count(StateUnknown) != 2 || report.Count(StateUntried) != 2 {
		t.Errorf("Apply: got the report %s, error %v, want 2 unknown and 2 untried objects, and amqp.ErrClosed", report, err)
	}
	invalid := topology.Topology{Queues: []topology.Queue{{Name: "amq.q"}}}
	if _, err := (Broker{Conn: deadConn{}}).Apply(t.Context(), invalid, ApplyOptions{}); !errors.Is(err, topology.ErrInvalid) {
		t.Errorf("Apply of an invalid topology: got %v, want topology.ErrInvalid", err)
	}
}

type fixedInspector struct {
	live plan.State
	err  error
}

func (i fixedInspector) Inspect(context.Context, topology.Topology) (plan.State, error) {
	return i.live, i.err
}

// With an inspector, Apply reports problems before it changes anything.
func TestApplyAsksTheInspectorFirst(t *testing.T) {
	minute := time.Minute
	top := topology.Topology{Queues: []topology.Queue{{Name: "q", MessageTTL: &minute, DeadLetter: &topology.DeadLetter{}}}}
	broken := errors.New("no answer")
	for name, c := range map[string]struct {
		insp fixedInspector
		want error
	}{
		"error":    {fixedInspector{err: broken}, broken},
		"conflict": {fixedInspector{live: plan.State{Queues: map[string]plan.Queue{"q": {Mismatches: []topology.Mismatch{{Argument: "x"}}}}}}, topology.ErrConflict},
		"policy": {fixedInspector{live: plan.State{Policies: []plan.Policy{
			{Name: "p", Pattern: "q", ApplyTo: "all", Definition: map[string]any{"expires": 1}},
		}}}, topology.ErrPolicy},
	} {
		report, err := Broker{Conn: deadConn{}, Inspector: c.insp}.Apply(t.Context(), top, ApplyOptions{})
		if !errors.Is(err, c.want) || report.Count(StateUntried) != 1 {
			t.Errorf("%s: got the report %s, error %v, want 1 untried object and %v", name, report, err, c.want)
		}
	}
}

func TestTemporaryRefusals(t *testing.T) {
	a := &applier{names: map[string]bool{"x": true, "q": true}}
	binding := declaration{kind: topology.KindBinding, needs: []string{"x", "q"}}
	for name, c := range map[string]struct {
		object declaration
		err    error
		want   bool
	}{
		"queue being declared":     {binding, &amqp.Error{Code: amqp.NotFound}, true},
		"missing object of others": {declaration{kind: topology.KindBinding, needs: []string{"x", "stranger"}}, &amqp.Error{Code: amqp.NotFound}, false},
		"conflict": {
			declaration{kind: topology.KindQueue},
			&amqp.Error{Code: amqp.PreconditionFailed, Reason: "inequivalent arg 'timeout' for queue 'timeout' in"},
			false,
		},
		"metadata store is slow": {declaration{kind: topology.KindQueue}, &amqp.Error{Code: amqp.PreconditionFailed, Reason: "operation timed out"}, true},
		"no permission":          {declaration{kind: topology.KindQueue}, &amqp.Error{Code: amqp.AccessRefused}, false},
		"network":                {declaration{kind: topology.KindQueue}, errors.New("reset"), false},
	} {
		if got := a.mayPass(c.object, c.err); got != c.want {
			t.Errorf("mayPass of %s = %t, want %t", name, got, c.want)
		}
	}
}

func TestRefusalWinsOverALostConnection(t *testing.T) {
	lost := &amqp.Error{Code: amqp.ChannelError, Reason: "expected 'channel.open'"}
	refused := &amqp.Error{Code: amqp.PreconditionFailed}
	for want, errs := range map[error][]error{
		nil:     {nil, nil},
		lost:    {nil, lost, errors.New("reset")},
		refused: {lost, nil, refused, lost},
	} {
		if got := mostInformative(errs); !errors.Is(got, want) {
			t.Errorf("mostInformative(%v) = %v, want %v", errs, got, want)
		}
	}
}

// Arguments from Go code may have the type int. They are converted to int64, because amqp091 would write an int with 32
// bits.
func TestArgumentsKeepTheirSize(t *testing.T) {
	got := channels.Table(map[string]any{"n": 5_000_000_000, "in": map[string]any{"a": []any{5_000_000_000, "text"}}})
	want := amqp.Table{"n": int64(5_000_000_000), "in": amqp.Table{"a": []any{int64(5_000_000_000), "text"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Table: got %#v, want %#v", got, want)
	}
}
